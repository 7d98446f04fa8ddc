// Runs before anything is drawn, so that no page flashes in the other theme.
"use strict";
(() => {
  const kinds = ["system", "light", "dark"];
  let kind = "system";
  try { kind = localStorage.getItem("theme") || "system"; } catch { /* private windows may refuse */ }
  if (!kinds.includes(kind)) kind = "system";
  const apply = () => {
    if (kind === "system") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", kind);
  };
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const say = () => { button.textContent = `theme: ${kind}`; };
    say();
    button.addEventListener("click", () => {
      kind = kinds[(kinds.indexOf(kind) + 1) % kinds.length];
      try { localStorage.setItem("theme", kind); } catch { /* it holds for this visit */ }
      apply();
      say();
      window.dispatchEvent(new Event("themechange"));
    });
  });
})();
