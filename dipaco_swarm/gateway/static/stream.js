// The gateway's answers: JSON, or server-sent events. What goes wrong is a sentence.

export class Trouble extends Error {
  constructor(words, status = 0) { super(words); this.status = status; }
}

const AWAY = "The gateway does not answer. Is it still running, and can this machine reach it?";
const BROKE_OFF = "The answer broke off: the gateway has gone. What came stays; send again to go on.";

const sentence = (words) => {
  const text = words.trim();
  return text && `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
};

const called = async (place, key, options = {}) => {
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  let answer;
  try { answer = await fetch(place, { ...options, headers }); }
  catch (error) { throw error.name === "AbortError" ? error : new Trouble(AWAY); }
  if (answer.ok) return answer;
  let words = "";
  try { words = (await answer.json()).error.message; } catch { /* somebody between us answers in another way */ }
  throw new Trouble(sentence(words || `the gateway answers with error ${answer.status}`), answer.status);
};

export const read = async (place, key) => (await called(place, key)).json();

/** The parts of an answer, one by one, until it is whole. Throws Trouble when it does not come, or breaks off. */
export async function* parts(place, key, asked, signal) {
  const answer = await called(place, key, {
    method: "POST", signal, headers: { "content-type": "application/json" }, body: JSON.stringify({ ...asked, stream: true }) });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) throw new Trouble(BROKE_OFF);
      const events = (held + value).split("\n\n");
      held = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ")) continue;
        const data = event.slice(6);
        if (data === "[DONE]") return;
        const part = JSON.parse(data);
        if (part.error) throw new Trouble(sentence(part.error.message));
        yield part;
      }
    }
  } catch (error) {
    throw error instanceof Trouble || error.name === "AbortError" ? error : new Trouble(BROKE_OFF);
  } finally {
    reader.cancel().catch(() => { /* it had broken off */ });
  }
}
