"""`dipaco-peer`: from its settings to a volunteer on a real swarm, and again when the network is lost."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from dipaco_swarm.dashboard.screens import open_screen, recorded
from dipaco_swarm.errors import UnreachableError, UsageError
from dipaco_swarm.events.volunteer import Joining, Left, NobodyAnswers, NotDialable, Recovered
from dipaco_swarm.files import alone_in
from dipaco_swarm.machine.clock import SYSTEM_CLOCK
from dipaco_swarm.machine.gpu_power import LimitError, limited
from dipaco_swarm.machine.keys import listening
from dipaco_swarm.machine.memory import keep_what_is_loaded, share_heaps
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.machine.others import BatteryOfThisMachine, CpuOfOthers, GpuOfOthers, LineOfThisMachine
from dipaco_swarm.machine.priority import give_way
from dipaco_swarm.machine.sleep import SleepDetector
from dipaco_swarm.machine.stopping import Stopping, stopping_on_signals, until_stopped
from dipaco_swarm.machine.watching import Sources, Watch, looking
from dipaco_swarm.peer.answering import AnswerDesk
from dipaco_swarm.peer.attendance import Attendance
from dipaco_swarm.peer.keeping import has_been_in_run
from dipaco_swarm.peer.training_workbench import device_of, gpus_of, workbench_of
from dipaco_swarm.peer.usage import UsageMeter
from dipaco_swarm.peer.volunteer import Volunteer
from dipaco_swarm.settings import PeerSettings

log = logging.getLogger(__name__)

KNOCK_SECONDS = 10
DEFAULT_LISTEN = "/ip4/0.0.0.0/tcp/0"
REACHABLE = {"auto": None, "yes": True, "no": False}


def run_peer(settings: PeerSettings) -> None:
    """Train one path of a run until Ctrl+C, or until what the settings say. Raises SwarmError."""
    from dipaco_swarm.swarm.libp2p.opening import open_swarm
    from dipaco_swarm.swarm.libp2p.settings import NodeSettings

    if settings.low_priority:
        give_way()
    workbench = workbench_of(settings)  # before anything slow: a wrong device should cost no waiting
    keep_what_is_loaded()
    share_heaps()
    node = NodeSettings(
        listen=settings.listen or DEFAULT_LISTEN,
        reachable=REACHABLE[settings.reachable],
        bandwidth=settings.bandwidth,
    )
    with (
        alone_in(settings.home),
        _gpu_power(settings),
        stopping_on_signals() as stop,
        looking(Watch(settings.home, _sources(settings))) as watch,
        listening(stop, wanted=settings.screen == "live") as keys,
        open_screen(settings.screen, keys=keys) as shown,
    ):
        if keys is not None:
            keys.on("q", stop.request)
            keys.on("p", partial(_toggle, watch))
        screen = recorded(shown, settings.home)
        screen.event(Joining(settings.address.name))
        notices = Notices(screen.event, SYSTEM_CLOCK)
        attendance, usage = Attendance(screen.event), UsageMeter(SYSTEM_CLOCK)
        desk = None
        if settings.answers:
            desk = AnswerDesk(SYSTEM_CLOCK, device_of(settings.device), settings.answers)

        def again(nobody: UnreachableError) -> bool:
            """Whoever has been in the run waits for the others to come back; a newcomer may have a wrong address."""
            if not has_been_in_run(settings.home):
                return False
            log.debug("%s", nobody)
            notices.failing("door", NobodyAnswers(run=settings.address.name, again_seconds=KNOCK_SECONDS))
            stop.wait(KNOCK_SECONDS)
            return True

        def take_part(stop: Stopping) -> bool:
            """Join and train; whether the swarm was lost."""
            with open_swarm(settings.address, settings.home, node, stop, again) as swarm:
                stop.tell(swarm.interrupt)
                notices.recovered("door", Recovered("run"))
                if not swarm.reachable:
                    screen.event(NotDialable())
                if desk is not None:
                    swarm.asking.open(desk)
                with SleepDetector(swarm.clock) as detector:
                    missed = detector.missed
                    life = Volunteer(
                        settings, swarm, screen, stop, workbench, missed, attendance, usage, desk, manners=watch
                    )
                    life.live()
                return swarm.lost

        until_stopped(take_part, stop, screen.event)
        if desk is not None:
            desk.close()
        if (worked := usage.farewell()) is not None:
            screen.event(worked)
        screen.event(Left())
        attendance.in_the_end()


def _sources(settings: PeerSettings) -> Sources:
    """Where it is looked for reasons to pause, beside the one that somebody asks for it."""
    return Sources(
        hours=settings.hours,
        cpu=CpuOfOthers() if "cpu" in settings.yields else None,
        gpu=GpuOfOthers() if "gpu" in settings.yields else None,
        battery=BatteryOfThisMachine() if "battery" in settings.yields else None,
        line=LineOfThisMachine() if "metered" in settings.yields else None,
    )


@contextmanager
def _gpu_power(settings: PeerSettings) -> Iterator[None]:
    """While it trains. Raises UsageError."""
    with ExitStack() as later:
        if settings.gpu_power is not None:
            gpus = gpus_of([device_of(settings.device), *settings.helpers])
            try:
                later.enter_context(limited(settings.gpu_power, gpus))
            except LimitError as error:
                raise UsageError(f"--gpu-power {settings.gpu_power}: {error}") from None
        yield


def _toggle(watch: Watch) -> None:
    try:
        watch.toggle()
    except OSError as error:
        log.warning("the pause cannot be written down in the home folder: %s", error)
