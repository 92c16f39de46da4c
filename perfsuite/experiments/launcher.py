"""What starts the ranks of a session's groups: this process alone, or all that torchrun started."""

from collections.abc import Callable, Sequence

from perfsuite.errors import PerfsuiteError
from perfsuite.ranks.group import run_group
from perfsuite.ranks.messages import GroupRequest, Reply
from perfsuite.ranks.torchrun.groups import MultiHostGroups
from perfsuite.ranks.torchrun.peers import Peers
from perfsuite.ranks.torchrun.topology import Topology, read_place
from perfsuite.records.capability import Hardware, why_not_exercised
from perfsuite.records.recipe import Recipe
from perfsuite.system.timing_lock import TimingLock


class LocalLauncher:
    """This process starts every rank of a group, on this machine."""

    def __init__(self, hardware: Hardware, lock: TimingLock) -> None:
        self.hardware = hardware
        self.run: Callable[[GroupRequest], list[Reply]] = run_group
        self._lock = lock

    def hold_machine(self) -> None:
        """Take this machine's lock."""
        self._lock.acquire()

    def why_not_exercised(self, recipe: Recipe) -> str | None:
        """Return why the ranks would measure something else than the recipe, None if not."""
        return why_not_exercised(recipe, self.hardware)


class TorchrunLauncher(LocalLauncher):
    """This process and its peers start one rank each; they call every method in the same order."""

    def __init__(
        self, hardware: Hardware, lock: TimingLock, peers: Peers, gpus: Sequence[str]
    ) -> None:
        """Gather the places of all peers; `gpus` are the UUIDs of those that this process sees."""
        there = Topology(tuple(peers.gather("topology", read_place(lock.folder, gpus))))
        hardware = hardware._replace(num_gpus=there.num_gpus, num_cores=there.num_cores)
        super().__init__(hardware, lock)
        self.run = MultiHostGroups(peers, there).run
        self._topology, self._peers = there, peers
        self._holds_machines = False

    def hold_machine(self) -> None:
        """Take every machine's lock, each by the first of the ranks that share it."""
        if self._holds_machines:
            return
        trouble = None
        if self._topology.holds_lock(self._peers.membership.rank):
            try:
                self._lock.acquire()
            except PerfsuiteError as error:
                trouble = error
        for one in self._peers.gather("timing lock", trouble):
            if one is not None:
                raise one
        self._holds_machines = True

    def why_not_exercised(self, recipe: Recipe) -> str | None:
        """Return why the ranks would measure something else than the recipe, None if not."""
        return self._topology.why_not_exercised(recipe) or super().why_not_exercised(recipe)
