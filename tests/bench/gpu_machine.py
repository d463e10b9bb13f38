"""The machines of gpu_model.py: constants with their sources, none fitted, and what limits a kernel."""
import dataclasses

KIB = 1024


@dataclasses.dataclass(frozen=True)
class Gpu:
    name: str
    architecture: str  # Whose machine code it runs.
    sms: int
    ghz: float  # That its tensor peak is stated for.
    flops: int  # bf16, dense, of an SM in a cycle.
    mma_share: float  # Of these, what mma.sync has.
    hbm: float  # bytes/s
    latency: float  # cycles of a load from HBM
    shared: int  # bytes an SM has for blocks
    f32_lanes: int
    pcie: float  # bytes/s, of each direction

    @property
    def cycles(self):
        """Of all SMs in a second."""
        return self.sms * self.ghz * 1e9

    @property
    def peak(self):
        return self.cycles * self.flops


def pcie(gigatransfers):
    """bytes/s of 16 lanes, of which 128 of 130 bits are data (PCI Express Base Specification, 3.0 and
    later); packets' headers are not taken off."""
    return gigatransfers * 1e9 * 16 / 8 * 128 / 130


# NVIDIA A100 and H100 whitepapers (2020, 2022), H200 data sheet (2023): SMs, clocks, lanes, shared
# memory, HBM, PCIe: A100 80GB SXM 312 TFLOP/s, 2,039 GB/s, PCIe 4; H100 SXM5 989.4 TFLOP/s, 3,350
# GB/s, PCIe 5; H200 has its chip with 4,800 GB/s. Latencies, and what of H100's rate mma.sync has:
# Luo et al., arXiv 2402.13499 (2024), tables of memory latency and of mma instructions.
GPUS = [
    Gpu("A100", "sm_80", 108, 1.410, 2048, 1.0, 2.039e12, 466, 164 * KIB, 64, pcie(16)),
    Gpu("H100", "sm_90a", 132, 1.830, 4096, 0.629, 3.35e12, 479, 228 * KIB, 128, pcie(32)),
    Gpu("H200", "sm_90a", 132, 1.830, 4096, 0.629, 4.8e12, 479, 228 * KIB, 128, pcie(32)),
]
# Of an SM in a cycle, on all three (CUDA C++ Programming Guide, arithmetic throughput and
# compute capabilities).
SHARED_BYTES, MUFU_LANES, PARTITIONS, REGISTERS, THREADS = 128, 16, 4, 65536, 2048
RESERVED_SHARED = KIB  # Of each block.


def blocks_per_sm(gpu, threads, registers, shared):
    """How many fit: registers are given to warps in units of 256, of those of their quarter."""
    per_warp = -(-registers * 32 // 256) * 256
    return min(THREADS // threads,
               REGISTERS // PARTITIONS // per_warp * PARTITIONS // (threads // 32),
               gpu.shared // (shared + RESERVED_SHARED), 32)


def reach_of_bytes(gpu, in_flight, directions=1):
    """(bytes/s at most, its limit) with so many bytes under way on each SM (Little's law)."""
    by_latency = in_flight * gpu.cycles / gpu.latency
    hbm = gpu.hbm / directions
    return (hbm, "HBM") if hbm <= by_latency else (by_latency, "occupancy")


def product_cycles(gpu, loop, warps):
    """Of the tensor cores of an SM, for a turn of so many warps."""
    busy = min(1, warps / PARTITIONS)  # Fewer warps than partitions leave some idle.
    mma = warps * loop.products * 2 * 16 * 8 * 16 / (gpu.flops * gpu.mma_share * busy)
    wgmma = sum(times * 2 * 64 * columns * 16 for (columns, _), times in loop.wgmma.items())
    return mma + warps / 4 * wgmma / gpu.flops


def shared_bytes(loop, warps):
    """That these warps' products read, each warpgroup for itself: of a wgmma its columns, and its rows
    unless they are in registers."""
    wgmma = sum(times * (columns + 64 * (not held)) * 16 * 2
                for (columns, held), times in loop.wgmma.items())
    return warps * 512 * loop.ldsm + warps / 4 * wgmma


def cycles_of_turn(gpu, loop, warps, written):
    """Of an SM for a turn of `warps` that multiply, to whom copies write so many bytes of shared
    memory: by what they are spent on."""
    quarters = min(PARTITIONS, warps)

    def of_each(lanes, instructions):
        return warps * instructions * 32 / lanes / quarters
    return {"tensor cores": product_cycles(gpu, loop, warps),
            "shared memory": (shared_bytes(loop, warps) + written) / SHARED_BYTES,
            "issue slots": of_each(32, loop.all),
            "exponentials": of_each(MUFU_LANES / PARTITIONS, loop.mufu),
            "f32": of_each(gpu.f32_lanes / PARTITIONS, loop.f32)}


def least_and_most(cycles):
    """(cycles, what takes them) if products, which shared memory feeds, and all else run one after the
    other, and if everything overlaps."""
    most = max(cycles, key=cycles.get)
    feeds = ("tensor cores", "shared memory")
    groups = [[name for name in cycles if name in feeds],
              [name for name in cycles if name not in (*feeds, "HBM", "occupancy")],
              [name for name in cycles if name in ("HBM", "occupancy")]]
    series = sum(max((cycles[name] for name in group), default=0) for group in groups)
    return (series, most), (cycles[most], most)
