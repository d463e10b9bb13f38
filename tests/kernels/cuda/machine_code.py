"""What nvcc must have made of the kernels, and what of their PTX no compiler and no emulation checks."""
import re

# A copy that can be of zeros instead names a predicate last.
COPY = re.compile(r"\bLDGSTS\b[^;]*")
IS_PREDICATED = re.compile(r",\s*!?U?P\d\s*$")
# Of tiles in shared memory by a warpgroup; a predicate last would leave out what was summed before.
def tiles_of(columns):
    return re.compile(rf"\bHGMMA\.64x{columns}x16\.F32(\.BF16)? R\d+, gdesc\[UR\d+\], R\d+(, gsb0)? ;")


WARPGROUP_WAIT = re.compile(r"\bWARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+)")
PRODUCT = re.compile(r"\bHMMA\.16816\.F32(\.BF16)?\b")
# What waits for all but so many of the newest groups of copies.
WAIT = re.compile(r"\bDEPBAR\.LE SB0, (0x[0-9a-f]+)")

# The same of 64 keys, with V by rows and probabilities in registers; ptxas knows that the first sum of
# scores starts from zero.
SCORES = re.compile(r"\bHGMMA\.64x64x16\.F32(\.BF16)? R\d+, gdesc\[UR\d+\], (?:R\d+|RZ, !UPT)(, gsb0)? ;")
VALUES = re.compile(r"\bHGMMA\.64x(?:64|128)x16\.F32(\.BF16)? R\d+, R\d+, gdesc\[UR\d+\]\.tnspB, R\d+(, gsb0)? ;")

# Of warpgroups that give registers to each other.
REGISTERS = ["USETMAXREG.TRY_ALLOC.CTAPOOL", "USETMAXREG.DEALLOC.CTAPOOL"]

# The statements of dialect_nvcc.h and dialect_sm90_nvcc.h, as the PTX manual (sections 9.7.9 to 9.7.15) writes them: the
# emulation has its own in place of them, and a swapped operand compiles.
PTX = {
    "Exp2": ['asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));'],
    "Log2": ['asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));'],
    "RoundPair": [f'asm("cvt.rn.{t}.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));'
                  for t in ("bf16x2", "f16x2")],
    "MultiplyPairs": [
        'asm("fma.rn.bf16x2 %0, %1, %2, %3;" '
        ': "=r"(pair) : "r"(a), "r"(b), "r"(0x80008000u));',
        'asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));'],
    "LoadMatrices": [
        'asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" '
        ': "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) '
        ': "r"(SharedAddress(row)) : "memory");'],
    "LoadMatricesTransposed": [
        'asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" '
        ': "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3]) '
        ': "r"(SharedAddress(row)) : "memory");'],
    "MultiplyAdd": [
        f'asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{t}.{t}.f32 '
        '{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" '
        ': "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) '
        ': "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));'
        for t in ("bf16", "f16")],
    "CopyAsync": [
        'asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" '
        '::"r"(SharedAddress(to)), "l"(from), "r"(live ? 16 : 0) : "memory");'],
    "CommitCopies": ['asm volatile("cp.async.commit_group;" ::: "memory");'],
    "WaitCopies": ['asm volatile("cp.async.wait_group %0;" ::"n"(kPendingGroups) : "memory");'],
}

def sums(count):
    """The registers of so many sums, in text and as operands."""
    return (", ".join(f"%{i}" for i in range(count)),
            ", ".join(f"BATON_SUMS({i})" for i in range(0, count, 8)) if count > 4 else
            "BATON_FOUR_SUMS(0)")


def product(count, t, operands, rest, inputs):
    """wgmma of so many sums and what stands behind them."""
    registers, constraints = sums(count)
    return (f'asm volatile("wgmma.mma_async.sync.aligned.m64n{2 * count}k16.f32.{t}.{t} '
            f'{{{registers}}}, {operands}, {rest};" : {constraints} : {inputs} : "memory");')


def tile_product(count, t, adds=1):
    return product(count, t, f"%{count}, %{count + 1}", f"{adds}, 1, 1, 0, 0",
                   '"l"(TileDescriptor(a)), "l"(TileDescriptor(b))')


def held_product(count, t):
    held = ", ".join(f"%{count + i}" for i in range(4))
    return product(count, t, f"{{{held}}}, %{count + 4}", "1, 1, 1, 1",
                   '"r"(a[4 * step]), "r"(a[4 * step + 1]), "r"(a[4 * step + 2]), '
                   '"r"(a[4 * step + 3]), "l"(RowsDescriptor(b))')


PTX_SM90 = {
    "ArriveCluster": ['asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");'],
    "WaitCluster": ['asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");'],
    "StoreRemote": [
        'asm volatile("{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; '
        'st.shared::cluster.v4.f32 [remote], {%2, %3, %4, %5};}" ::"r"(SharedAddress(&place)), '
        '"r"(block), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w) : "memory");'],
    "InitMbarrier": ['asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" '
                     '::"r"(SharedAddress(&barrier)), "r"(arrivals) : "memory");'],
    "FenceProxy": ['asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'],
    "Arrive": ['asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" '
               '::"r"(SharedAddress(&barrier)) : "memory");'],
    "ArriveExpecting": ['asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" '
                        '::"r"(SharedAddress(&barrier)), "r"(bytes) : "memory");'],
    "Wait": ['asm volatile("{.reg .pred ended; again: '
             'mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1; @!ended bra again;}" '
             '::"r"(SharedAddress(&barrier)), "r"(parity) : "memory");'],
    "CopyBox": [
        f'asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes '
        f'[%0], [%1, {{{places}}}], [%2];" ::"r"(SharedAddress(to)), "l"(&map), '
        f'"r"(SharedAddress(&barrier)), {operands} : "memory");'
        for rank, places, operands in (
            (3, "%3, %4, %5", '"r"(x), "r"(y), "r"(z)'),
            (4, "%3, %4, %5, %6", '"r"(x), "r"(y), "r"(z), "r"(w)'))],
    "GiveRegisters": ['asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));'],
    "TakeRegisters": ['asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));'],
    "PinSums": ['asm volatile("" : "+f"(sums[i])::"memory");'],
    "FenceSums": ['asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'],
    "PinOperands": ['asm volatile("" : "+r"(operands[i])::"memory");'],
    "MultiplyAsync": [*(tile_product(count, t) for count in (64, 128, 4, 8, 16, 32) for t in ("bf16", "f16")),
                      *(held_product(count, t) for count in (32, 64) for t in ("bf16", "f16"))],
    "MultiplyAnewAsync": [tile_product(32, t, adds=0) for t in ("bf16", "f16")],
    "CommitProducts": ['asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'],
    "WaitProducts": ['asm volatile("wgmma.wait_group.sync.aligned %0;" '
                     '::"n"(kPendingGroups) : "memory");'],
}


def missing_sm90(name, code, copies, kinds):
    """The same of a kernel of warpgroups, whose copies and products are of these kinds."""
    wanted = [*copies, "SYNCS.PHASECHK.TRANS64.TRYWAIT", "SYNCS.ARRIVE.TRANS64",
              "FENCE.VIEW.ASYNC", "WARPGROUP.ARRIVE"]
    problems = [f"no {instruction}" for instruction in wanted if instruction not in code]
    suffix = ".BF16" if "Bf16" in name else ""
    products = [[found.group(1) or "" for found in kind.finditer(code)] for kind in kinds]
    if (any(set(some) != {suffix} for some in products) or
            sum(map(len, products)) != code.count("GMMA") or "HMMA" in code):
        problems.append(f"not all products are its HGMMA of F32{suffix} that add to their sums")
    waits = {int(found.group(1), 16) for found in WARPGROUP_WAIT.finditer(code)}
    if waits != {0, 1}:
        problems.append(f"waits that leave {waits} groups of products under way, not 0 and 1")
    return problems


def missing_decode(name, code):
    """The same of decode attention for sm_90a."""
    wanted = ["UTMALDG.4D", "SYNCS.PHASECHK.TRANS64.TRYWAIT", "SYNCS.ARRIVE.TRANS64",
              "FENCE.VIEW.ASYNC", "LDSM.16.M88.4", "LDSM.16.MT88.4", "ATOMG.E.INC.STRONG.GPU"]
    problems = [f"no {instruction}" for instruction in wanted if instruction not in code]
    suffix = ".BF16" if "Bf16" in name else ""
    # Of Q and K and of probabilities and V, 64 keys by each 64 columns.
    products, wanted = ([found.group(1) or "" for found in PRODUCT.finditer(code)],
                        64 * int(re.search(r"DecodeSm90Kernel<(\d)", name).group(1)))
    if set(products) != {suffix} or len(products) != wanted or "GMMA" in code:
        problems.append(f"not all products are {wanted} HMMA.16816.F32{suffix}")
    if code.count("MEMBAR.SC.GPU") != 2 or code.count("CCTL.IVALL") != 2:
        problems.append("no fence before a partial is counted, or none behind the last count")
    return problems


def warps_of_two(name):
    """Warps of a block of which an SM is to have two: those of kThreads of attention_decode_sm90.cu and
    kBlockThreads of small_gemm_sm90.cu. 0 of other kernels, None where a name does not tell."""
    decode = re.search(r"DecodeSm90Kernel<(\d), [\w:]+, (true|false)>\(", name)
    if decode:
        return 6 if decode.group(1) == "1" or decode.group(2) == "true" else 4
    small = re.search(r"SmallGemmSm90Kernel<[\w:]+, [\w:]+, (\d+), (\d+), (?:true|false)>\(", name)
    if small:
        return int(small.group(1)) // 16 + 1 if int(small.group(2)) < 128 else 0
    return None if re.search("DecodeSm90Kernel|SmallGemmSm90Kernel", name) else 0


def too_many_registers(name, registers):
    """Of a kernel that is to have two blocks on an SM, whose quarters have 16384 each."""
    warps = warps_of_two(name)
    if warps is None:
        return ["whether an SM has room for two blocks is not known of such a name"]
    needed = -(-2 * warps // 4) * (-(-registers * 32 // 256) * 256)  # A warp has units of 256.
    return [f"{needed} registers of a quarter of an SM for two blocks"] * (needed > 16384)


def waits_of(name):
    """How many groups each wait of a kernel leaves under way."""
    if "GemmKernel" not in name:
        return {0}
    stages = int(re.search(r"TileShape<[^<>]*\b(\d+)>", name).group(1))
    return {0, stages - 2}


def missing(name, code):
    """What the machine code of a kernel of products lacks, by its name; nothing of other kernels."""
    if "MultiplyOnlyKernel" in name:  # A roof: what would be left out would raise it.
        products = len(PRODUCT.findall(code))
        return [f"{products} products, not one for each of 8 chains"] * (products != 8)
    if "MultiplyOnlySm90Kernel" in name:
        products = len(tiles_of(256).findall(code))
        return [f"{products} products, not one for each 16 of k"] * (products != 4)
    small = re.search(r"SmallGemmSm90Kernel<.*, (\d+), (true|false)>", name)
    if small:  # A cluster folds: 16 bytes at a time go to another block.
        folds = ["UCGABAR_ARV", "UCGABAR_WAIT", "ST.E.128"] * (small.group(2) == "false")
        return missing_sm90(name, code, ["UTMALDG.3D", *folds], [tiles_of(small.group(1))])
    if "GemmSm90Kernel" in name:
        columns = re.search(r"<.*, (\d+), (true|false)>", name).group(1)
        return missing_sm90(name, code, ["UTMALDG.3D", *REGISTERS], [tiles_of(columns)])
    if "AttentionSm90Kernel" in name:
        return missing_sm90(name, code, ["UTMALDG.3D", "UTMALDG.4D", *REGISTERS], [SCORES, VALUES])
    if "DecodeSm90Kernel" in name:
        return missing_decode(name, code)
    if not re.search("GemmKernel|AttentionKernel", name):
        return []
    wanted = ["LDSM.16.M88.4", "LDGDEPBAR"]
    if "AttentionKernel" in name:
        wanted.append("LDSM.16.MT88.4")  # V's tiles are read by columns.
    problems = [f"no {instruction}" for instruction in wanted if instruction not in code]
    suffix = ".BF16" if "Bf16" in name else ""
    if {found.group(1) or "" for found in PRODUCT.finditer(code)} != {suffix}:
        problems.append(f"not all products are HMMA.16816.F32{suffix}")
    copies = [found.group() for found in COPY.finditer(code)]
    if not copies or not all(map(IS_PREDICATED.search, copies)):
        problems.append("no LDGSTS, or one that copies what is not there")
    waits = {int(found.group(1), 16) for found in WAIT.finditer(code)}
    if waits != waits_of(name):
        problems.append(f"waits that leave {waits} groups under way, not {waits_of(name)}")
    return problems


# A macro without arguments, which may go on over lines.
MACRO = re.compile(r"^#define (\w+) ((?:.*\\\n)*.*)\n", re.M)


def expanded(source):
    """The source with its macros without arguments in place, in order: each may use those before it."""
    macros = {}
    for name, body in MACRO.findall(source):
        body = body.replace("\\\n", " ").strip()
        macros[name] = re.sub(r"\w+", lambda word: macros.get(word.group(), word.group()), body)
    return re.sub(r"\w+", lambda word: macros.get(word.group(), word.group()), MACRO.sub("", source))


def statements_of(source):
    """Function -> its asm statements, with blanks and joined strings as PTX has them."""
    out = {}
    for found in re.finditer(r"(\w+)\([^;{}]*\) \{|(\basm\b.*?\);\n)", expanded(source), re.DOTALL):
        if found.group(1):
            function = found.group(1)
        else:
            text = re.sub(r'"\s+"', "", found.group(2))
            text = re.sub(r"\s+", " ", text).strip().replace("asm volatile( ", "asm volatile(")
            out.setdefault(function, []).append(text)
    return out
