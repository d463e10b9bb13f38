"""What a kernel's machine code does in one turn of its main loop, counted in what cuobjdump prints."""
import collections
import dataclasses
import re
import subprocess

LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);")
# Columns, and whether its rows come from registers; the others are from shared memory.
WGMMA = re.compile(r"\bHGMMA\.64x(\d+)x16\.F32\S* R\d+, (R\d+)?")


@dataclasses.dataclass
class Loop:
    """Instructions of a warp; `wgmma`: (columns, rows are in registers) -> how many."""
    all: int = 0
    products: int = 0
    ldsm: int = 0
    copies: int = 0
    mufu: int = 0
    f32: int = 0
    wgmma: dict = dataclasses.field(default_factory=dict)


def instructions_of(code):
    return [(int(at, 16), text.strip()) for at, text in LINE.findall(code)]


def count(body):
    words = collections.Counter(re.sub(r"^@!?U?P\d+\s+", "", text).partition(" ")[0].partition(".")[0]
                                for text in body)
    wgmma = collections.Counter((int(found.group(1)), found.group(2) is not None)
                                for text in body if (found := WGMMA.search(text)))
    return Loop(len(body), words["HMMA"], words["LDSM"], words["LDGSTS"], words["MUFU"],
                words["FFMA"] + words["FADD"] + words["FMUL"], dict(wgmma))


def target_of(text):
    found = re.search(r"\bBRA\b.*?\b0x([0-9a-f]+)", text)
    return int(found.group(1), 16) if found else None


def is_product(text):
    return re.search(r"\bHG?MMA\b", text) is not None


def ways_on(lines):
    """Address -> the addresses that may be next. Calls come back; what converges goes on behind."""
    ways = {}
    for (at, text), (after, _) in zip(lines, [*lines[1:], (None, "")]):
        ends = re.match(r"(BRA(\.U)? 0x|EXIT|RET|BRX|JMP)", text)
        ways[at] = {target_of(text), None if ends else after} - {None}
    return ways


def shortest(ways, begin, end):
    """Addresses from `begin` to `end`, without the former; KeyError where there is no way."""
    before, queue = {}, collections.deque([begin])
    while queue and end not in before:
        at = queue.popleft()
        for after in ways[at] - before.keys():
            before[after] = at
            queue.append(after)
    way = [end]
    while before[way[-1]] != begin:
        way.append(before[way[-1]])
    return way[::-1]


def loops_of(lines, ways):
    """[(first address, last, all of its own)] of each loop: what reaches the last without passing by
    the first. A wait that stands elsewhere and comes back is none of what it comes back to."""
    before = collections.defaultdict(set)
    for at, afters in ways.items():
        for after in afters:
            before[after].add(at)
    for last, text in lines:
        first = target_of(text)
        if first is None or first >= last:
            continue
        own, stack = {first, last}, [last]
        while stack:
            new = before[stack.pop()] - own
            own |= new
            stack += new
        if first == lines[0][0] or lines[0][0] not in own:  # Else nobody has to pass by the first.
            yield first, last, own


def main_loop(code):
    """One turn of the loop with the most products, of loops that stand one in the other the inner one,
    by the shortest way through all of them: what a warp issues at least, without ways for masks,
    caps, or bytes that are not aligned."""
    lines = instructions_of(code)
    ways, texts, best = ways_on(lines), dict(lines), (0, 0)
    for first, last, own in loops_of(lines, ways):
        products = [at for at in sorted(own) if is_product(texts[at])]
        if (len(products), -len(own)) > best and products:
            best, turn = (len(products), -len(own)), (first, last, products)
    if not best[0]:
        return Loop()
    first, last, products = turn
    way = [first]
    for stop in [*products, last]:
        if stop != way[-1]:
            way += shortest(ways, way[-1], stop)
    return count([texts[at] for at in way])


def least_of_turn(code, word, times):
    """Instructions of the shortest way from the first of a loop without products to its last that has
    `word` so many times; 0 where there is none."""
    lines = instructions_of(code)
    ways, texts = ways_on(lines), dict(lines)
    marked, found = {at for at, text in lines if word in text}, []
    for first, last, own in loops_of(lines, ways):
        if not own & marked or any(is_product(texts[at]) for at in own):
            continue
        seen, now, steps = set(), {(first, int(first in marked))}, 1
        while now and (last, times) not in now:
            seen |= now
            now = {(to, min(times, had + (to in marked))) for at, had in now
                   for to in ways[at] & own} - seen
            steps += 1
        found += [steps] * bool(now)
    return min(found, default=0)


def kernels_of(cubin, home):
    """Demangled name -> (registers, text of its code)."""
    def run(*words):
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout
    used = run(home / "bin/cuobjdump", "-res-usage", cubin)
    registers = dict(re.findall(r"Function (\w+):\s*\n.*?\bREG:(\d+)", used))
    code = {}
    for part in re.split(r"\n\s*Function : ", run(home / "bin/cuobjdump", "-sass", cubin))[1:]:
        mangled, _, text = part.partition("\n")
        code[mangled.strip()] = text
    names = run("c++filt", *code).splitlines()
    return {name: (int(registers[mangled]), code[mangled]) for mangled, name in zip(code, names)}
