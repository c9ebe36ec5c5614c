"""One server, simulated slowly: lists and dictionaries, every step kept. What the compiled machine is compared with."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

NS = 1_000_000_000


@dataclass(kw_only=True)
class Asked:
    """A request, and what became of it."""

    prompt: int
    output: int
    arrival: int | None = None  # None: after the turn before
    wait: int = 0  # before the next turn
    next_turn: Asked | None = None
    ids: list[int] = field(default_factory=list)
    refused: bool = False
    # outcome
    scheduled: int | None = None
    first: int | None = None
    finish: int | None = None
    cached: int = 0
    preempted: int = 0
    # state
    computed: int = 0
    highest: int = 0
    generated: int = 0
    mine: dict[int, int] = field(default_factory=dict)  # position of a common block → its id

    @property
    def text(self) -> int:
        return self.prompt + self.generated


@dataclass(kw_only=True)
class Step:
    """`start` of the device, `began` of the host."""

    began: int
    start: int
    end: int
    running: int
    pages: int


@dataclass(kw_only=True)
class Oracle:
    """Limits, and the state of the cache. `time_ns(prefills, decodes, sampled)`: (q, k) of prompts, k of decodes."""

    time_ns: Callable[[list[tuple[int, int]], list[int], int], int]
    host_ns: int
    budget: int
    seqs: int
    pages: int
    page: int
    block: int = 0
    steps: list[Step] = field(default_factory=list)
    recomputed: int = 0
    users: dict[int, int] = field(default_factory=dict)
    unused: OrderedDict[int, None] = field(default_factory=OrderedDict)  # in the cache, nobody's, the oldest first
    running: list[Asked] = field(default_factory=list)

    @property
    def per(self) -> int:
        return self.block // self.page

    def own(self, request: Asked) -> int:
        """Pages of its own."""
        return -(-request.computed // self.page) - len(request.mine) * self.per

    def taken(self) -> int:
        """Pages in use by running requests, each common block once."""
        held = sum(self.allotted[id(request)] - len(request.mine) * self.per for request in self.running)
        return held + self.per * sum(1 for count in self.users.values() if count)

    allotted: dict[int, int] = field(default_factory=dict)  # pages, common ones included, by request

    def room(self) -> int:
        """Pages that could be had."""
        return self.pages - self.taken()

    def run(self, requests: list[Asked]) -> None:
        due = sorted(((r.arrival, i) for i, r in enumerate(requests) if r.arrival is not None))
        number = {id(r): i for i, r in enumerate(requests)}
        waiting: deque[Asked] = deque()
        now = 0
        while due or waiting or self.running:
            while due and due[0][0] <= now:
                when, i = due.pop(0)
                request = requests[i]
                request.arrival = when
                if request.refused:
                    self.follow(request, when, due, number)
                else:
                    waiting.append(request)
            if not waiting and not self.running:
                if due:
                    now = due[0][0]
                continue
            chunks = self.schedule(waiting, now)
            now = self.step(chunks, now, due, number)

    def follow(self, request: Asked, when: int, due: list[tuple[int, int]], number: dict[int, int]) -> None:
        if request.next_turn is not None:
            due.append((when + request.wait, number[id(request.next_turn)]))
            due.sort()

    def schedule(self, waiting: deque[Asked], now: int) -> dict[int, int]:
        chunks: dict[int, int] = {}
        budget, gave_up, at = self.budget, False, 0
        while at < len(self.running) and budget:
            request = self.running[at]
            q = min(budget, request.text - request.computed)
            while request in self.running and not self.take(request, q):
                victim = self.running[-1]
                self.release(victim)
                self.running.pop()
                victim.computed, victim.preempted = 0, victim.preempted + 1
                waiting.appendleft(victim)
                gave_up = True
            if request not in self.running:
                break
            chunks[id(request)] = q
            budget -= q
            at += 1
        while waiting and budget and not gave_up and len(self.running) < self.seqs:
            request = waiting[0]
            hits = 0
            while (
                hits < len(request.ids) and (hits + 1) * self.block < request.text and request.ids[hits] in self.users
            ):
                hits += 1
            idle_hits = sum(1 for b in request.ids[:hits] if self.users[b] == 0)
            if -(-request.text // self.page) - hits * self.per > self.room() - idle_hits * self.per:
                break
            waiting.popleft()
            for j in range(hits):
                self.users[request.ids[j]] += 1
                self.unused.pop(request.ids[j], None)
                request.mine[j] = request.ids[j]
            request.computed = hits * self.block
            request.cached += max(0, request.computed - request.highest)
            request.highest = max(request.highest, request.computed)
            self.running.append(request)
            self.allotted[id(request)] = hits * self.per
            q = min(budget, request.text - request.computed)
            assert self.take(request, q)
            request.scheduled = now if request.scheduled is None else request.scheduled
            chunks[id(request)] = q
            budget -= q
        return chunks

    def take(self, request: Asked, q: int) -> bool:
        need = -(-(request.computed + q) // self.page) - self.allotted[id(request)]
        if need > self.room():
            return False
        # evict the oldest blocks without users until what is left of the memory is enough
        while self.pages - self.taken() - len(self.unused) * self.per < need:
            oldest, _ = self.unused.popitem(last=False)
            del self.users[oldest]
        self.allotted[id(request)] += need
        for j in range(request.computed // self.block if self.block else 0, len(request.ids)):
            if (
                (j + 1) * self.block <= request.computed + q
                and j not in request.mine
                and request.ids[j] not in self.users
            ):
                self.users[request.ids[j]] = 1
                request.mine[j] = request.ids[j]
        return True

    def release(self, request: Asked) -> None:
        for j in sorted(request.mine, reverse=True):
            block = request.mine[j]
            self.users[block] -= 1
            if self.users[block] == 0:
                self.unused[block] = None
        request.mine.clear()
        self.allotted[id(request)] = 0

    def step(self, chunks: dict[int, int], now: int, due: list[tuple[int, int]], number: dict[int, int]) -> int:
        prefills, decodes, sampled = [], [], 0
        for request in self.running:
            q = chunks.get(id(request), 0)
            k = request.computed + q
            if not q:
                continue
            sampled += k == request.text
            if q == 1 and k == request.text and request.generated:
                decodes.append(k)
            else:
                prefills.append((q, k))
        busy = self.time_ns(prefills, decodes, sampled)
        start, end = now + self.host_ns, now + self.host_ns + busy
        self.steps.append(Step(began=now, start=start, end=end, running=len(self.running), pages=self.taken()))
        for request in list(self.running):
            q = chunks.get(id(request), 0)
            if q and not (q == 1 and request.computed + 1 == request.text and request.generated):
                self.recomputed += min(q, max(0, request.highest - request.computed))
            request.computed += q
            request.highest = max(request.highest, request.computed)
            if q and request.computed == request.text:
                request.generated += 1
                request.first = end if request.first is None else request.first
                if request.generated == request.output:
                    request.finish = end
                    self.release(request)
                    self.running.remove(request)
                    self.follow(request, end, due, number)
        return end
