#!/usr/bin/env python3
"""The arithmetic of gpu_model.py, by cases that were computed by hand; that it knows the kernels that
there are; and that nothing measured is beyond what it computed.

Usage: gpu_model_test.py [unittest arguments]
"""
import json
import pathlib
import re
import unittest
import unittest.mock

import gpu_code
import gpu_goals
import gpu_kernels
import gpu_machine
import gpu_model
from gpu_code import Loop
from gpu_machine import GPUS, KIB
from gpu_model import Fa3

A100, H100, H200 = GPUS
HERE = pathlib.Path(__file__).resolve().parent
KERNELS = HERE.parents[1] / "kernels/cuda"
COMPUTED = HERE / "results/2026-11-28-gpu-model-computed.txt"
MEASURED = HERE / "results/2026-11-28-h100-operators.txt"


def code_of(*lines):
    """As cuobjdump prints them, the first at 0."""
    return "\n".join(f"        /*{16 * i:04x}*/                   {line} ;" for i, line in enumerate(lines))


# A loop of five instructions of a warp, two of them products, in one of three; and an `if`.
CODE = code_of("MOV R1, c[0x0][0x28]", "LDSM.16.M88.4 R4, [R2]", "HMMA.16816.F32.BF16 R8, R4, R6, R8",
               "HMMA.16816.F32.BF16 R12, R4, R7, R12", "MUFU.EX2 R3, R3", "@P0  BRA 0x10",
               "@P1  BRA 0x00", "@P2  BRA 0x90", "EXIT", "EXIT")
# A loop of wgmma that waits elsewhere and mostly has nothing to mask.
WGMMA = code_of("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x8], R3", "@!P0 BRA 0x90",
                "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT",
                "HGMMA.64x128x16.F32.BF16 R88, R4, gdesc[UR12].tnspB, R88, gsb0", "@!P1 BRA 0x70",
                "MUFU.EX2 R1, R1", "MUFU.EX2 R2, R2", "MUFU.EX2 R3, R3", "@P2 BRA 0x00",
                "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4+0x8], R3", "@!P0 BRA 0x90", "BRA 0x20")
# Loops of four reads of shared memory, once with twice as much besides; and products without any.
CONVERTS = code_of("LDS.128 R4, [R2]", "PRMT R4, R4, R5, R6", "PRMT R4, R4, R5, R6", "@P0 BRA 0x00",
                   "LDS.128 R4, [R2]", "STS.128 [R2], R4", "@P0 BRA 0x40",
                   "HMMA.16816.F32.BF16 R8, R4, R6, R8", "@P0 BRA 0x70", "EXIT")

# What c++filt gives of the cubins, as far as it counts: (source, before the arguments, registers).
PREFIX = "void baton::cuda::"
REAL = [
    ("gemm", "gemm::GemmKernel<baton::cuda::gemm::TileShape<128, 128, 64, 32, 3>, baton::cuda::Bf16, "
     "baton::cuda::Bf16>(baton::cuda::gemm::Problem<baton::cuda::Bf16>)", 156),
    ("gemm", "gemm::GemmKernel<baton::cuda::gemm::TileShape<64, 16, 16, 16, 4>, baton::cuda::Bf16, float>"
     "(baton::cuda::gemm::Problem<baton::cuda::Bf16>)", 82),
    ("expert_gemm", "expert_gemm::ExpertGemmKernel<baton::cuda::gemm::TileShape<64, 16, 16, 16, 4>, false, "
     "baton::cuda::Bf16, baton::cuda::Bf16>(baton::cuda::expert_gemm::Problem<baton::cuda::Bf16>)", 81),
    ("attention", "attention::AttentionKernel<128, baton::cuda::Bf16, 4>(baton::cuda::attention::Problem, "
     "baton::cuda::attention::Scratch, bool, float)", 250),
    ("gemm_sm90", "gemm_sm90::GemmSm90Kernel<baton::cuda::Bf16, baton::cuda::Bf16, 256, false>"
     "(CUtensorMap_st, CUtensorMap_st, baton::cuda::gemm_sm90::Problem)", 168),
    ("gemm_sm90", "gemm_sm90::GemmSm90Kernel<baton::cuda::Bf16, float, 128, true>"
     "(CUtensorMap_st, CUtensorMap_st, baton::cuda::gemm_sm90::Problem)", 168),
    ("small_gemm_sm90", "small_gemm_sm90::SmallGemmSm90Kernel<baton::cuda::Bf16, baton::cuda::Bf16, 64, 8, "
     "false>(CUtensorMap_st, CUtensorMap_st, baton::cuda::small_gemm_sm90::Problem)", 38),
    ("small_gemm_sm90", "small_gemm_sm90::SmallGemmSm90Kernel<baton::cuda::Bf16, float, 128, 128, false>"
     "(CUtensorMap_st, CUtensorMap_st, baton::cuda::small_gemm_sm90::Problem)", 96),
    ("small_gemm_sm90", "small_gemm_sm90::SmallGemmSm90Kernel<baton::cuda::Bf16, baton::cuda::Bf16, 64, 32, "
     "true>(CUtensorMap_st, CUtensorMap_st, baton::cuda::small_gemm_sm90::Problem)", 45),
    ("attention_sm90", "attention_sm90::AttentionSm90Kernel<128, baton::cuda::Bf16>"
     "(baton::cuda::attention_sm90::Maps, baton::cuda::attention::Problem, "
     "baton::cuda::attention_sm90::Tiling, float)", 168),
    ("attention_decode_sm90", "attention::decode::DecodeSm90Kernel<2, baton::cuda::Bf16, false>"
     "(baton::cuda::attention::decode::PlaneMaps, baton::cuda::attention::decode::PlaneMaps, "
     "baton::cuda::attention::Problem, baton::cuda::attention::Scratch, unsigned int*, float)", 192),
    ("attention_decode_sm90", "attention::decode::DecodeSm90Kernel<1, baton::cuda::Bf16, true>"
     "(baton::cuda::attention::decode::PlaneMaps, baton::cuda::attention::decode::PlaneMaps, "
     "baton::cuda::attention::Problem, baton::cuda::attention::Scratch, unsigned int*, float)", 165),
]
SAYS = [["mma.sync GEMM 128 x 128 x 3 stages"], ["mma.sync segments 64 x 16 x 4 stages"],
        ["experts to bf16 64 x 16 x 4 stages"],
        ["mma.sync decode D 128, 4 warps", "mma.sync prefill D 128, 4 warps"],
        ["GEMM 128 x 256 x 4 stages"], ["segments 128 x 128 x 5 stages"], ["GEMM, up to 8 rows"],
        ["segments, up to 128 rows, wide"], ["gated GEMM, up to 32 rows"], ["prefill D 128"],
        ["decode D 128"], ["decode fp8 D 64"]]


def figures(gpu, name, code, registers=128):
    return gpu_kernels.figures_of(gpu, {PREFIX + name: (registers, code)})


def real(source, at=0):
    return [name for of, name, _ in REAL if of == source][at]


def top_level(arguments):
    depth = [arguments[:i].count("<") - arguments[:i].count(">") for i in range(len(arguments))]
    return 1 + sum(c == "," and d == 0 for c, d in zip(arguments, depth))


class CodeTest(unittest.TestCase):
    def test_the_loop_with_the_products_is_the_inner_one(self):
        self.assertEqual(gpu_code.main_loop(CODE), Loop(all=5, products=2, ldsm=1, mufu=1))
        self.assertEqual(gpu_code.main_loop(code_of("EXIT")), Loop())

    def test_a_turn_takes_the_shortest_way_and_no_wait(self):
        self.assertEqual(gpu_code.main_loop(WGMMA),
                         Loop(all=7, mufu=1, wgmma={(64, False): 1, (128, True): 1}))
        # Without the way round it takes what is to be masked, too.
        self.assertEqual(gpu_code.main_loop(WGMMA.replace("@!P1 BRA 0x70", "NOP")).mufu, 3)

    def test_the_least_of_a_loop_without_products(self):
        self.assertEqual(gpu_code.least_of_turn(CONVERTS, "LDS.128", 4), 4 * 3)
        self.assertEqual(gpu_code.least_of_turn(CONVERTS, "LDS.128", 1), 3)
        self.assertEqual(gpu_code.least_of_turn(CODE, "LDS.128", 1), 0)


class MachineTest(unittest.TestCase):
    def test_peaks_are_those_of_the_data_sheets(self):
        self.assertAlmostEqual(A100.peak / 1e12, 312, delta=1)
        self.assertAlmostEqual(H100.peak / 1e12, 989.4, delta=1)
        self.assertEqual(H200.peak, H100.peak)
        self.assertAlmostEqual(A100.pcie / 1e9, 31.5, delta=0.1)
        self.assertAlmostEqual(H100.pcie / 1e9, 63, delta=0.1)

    def test_blocks_are_bounded_by_threads_registers_and_shared_memory(self):
        blocks = gpu_machine.blocks_per_sm
        self.assertEqual(blocks(A100, 256, 16, 0), 8)  # 2048 threads
        self.assertEqual(blocks(A100, 128, 255, 0), 2)  # 128 * 256 of 65536
        self.assertEqual(blocks(H100, 160, 168, 0), 2)  # 3 warps in a quarter, 5 of each block.
        self.assertEqual(blocks(H100, 160, 169, 0), 1)
        self.assertEqual(blocks(A100, 128, 32, 40 << 10), 4)  # 4 * 41 = 164 KiB
        self.assertEqual(blocks(H100, 128, 32, 40 << 10), 5)  # 5 * 41 of 228

    def test_a_turn_of_mma_sync(self):
        cycles = gpu_machine.cycles_of_turn(A100, Loop(20, 2, 1, 0, 3, 4), 4, 2048)
        self.assertEqual(cycles, {"tensor cores": 16, "shared memory": 32, "issue slots": 20,
                                  "exponentials": 24, "f32": 8})
        one = gpu_machine.cycles_of_turn(A100, Loop(20, 2, 1, 0, 3, 4), 1, 2048)
        self.assertEqual([one[x] for x in ("tensor cores", "issue slots", "exponentials", "f32")],
                         [16, 20, 24, 8])
        self.assertEqual(one["shared memory"], 20)  # 512 and 2048 bytes of 128.

    def test_a_turn_of_wgmma_is_what_flash_attention_3_is_counted_by(self):
        loop = Loop(487, 0, 0, 0, 34, 0, {(64, False): 8, (128, True): 4})
        cycles = gpu_machine.cycles_of_turn(H100, loop, 8, 2 * 64 * 128 * 2)
        fa3 = gpu_model.fa3_cycles(H100, Fa3(128, True, 128, 64, 0))
        for limit in ("tensor cores", "shared memory"):
            self.assertEqual(cycles[limit], fa3[limit])
        self.assertEqual((cycles["issue slots"], cycles["exponentials"]), (2 * 487, 2 * 34 * 8))

    def test_what_feeds_products_overlaps_them_and_all_else_may(self):
        cycles = {"tensor cores": 5, "shared memory": 7, "issue slots": 3, "f32": 1, "HBM": 9}
        self.assertEqual(gpu_machine.least_and_most(cycles), ((7 + 3 + 9, "HBM"), (9, "HBM")))

    def test_bytes_under_way_bound_the_speed_of_memory(self):
        speed, limit = gpu_machine.reach_of_bytes(A100, 466)
        self.assertEqual(limit, "occupancy")
        self.assertAlmostEqual(speed, 108 * 1.41e9)  # A byte a cycle of each SM.
        self.assertEqual(gpu_machine.reach_of_bytes(A100, 1 << 20), (2.039e12, "HBM"))
        self.assertEqual(gpu_machine.reach_of_bytes(A100, 1 << 20, 2), (2.039e12 / 2, "HBM"))

    def test_a_tile_of_flash_attention_3(self):
        cycles = gpu_model.fa3_cycles(H100, Fa3(128, False, 128, 176, 0))
        self.assertEqual(cycles["tensor cores"], 2816)  # 4 * 128 * 176 * 128 / 4096
        self.assertEqual(cycles["exponentials"], 1408)  # 128 * 176 / 16
        self.assertEqual(cycles["f32"], 616)  # 3.5 * 128 * 176 / 128
        # Two warpgroups read 64 rows of Q, K and V; the copies write K and V.
        self.assertEqual(cycles["shared memory"], (2 * 256 * (64 + 352) + 4 * 176 * 128) / 128)
        everything, apart, none = gpu_model.fa3_tflops(H100, Fa3(128, False, 128, 176, 0))
        self.assertAlmostEqual(everything, H100.peak / 1e12)
        self.assertAlmostEqual(apart, H100.peak / 1e12 * 2 / 3)
        self.assertAlmostEqual(none, H100.peak / 1e12 * 2816 / 4840)

    def test_tiles_at_the_edge_of_a_causal_mask_are_whole(self):
        # Rows of 64 by keys of 64 over 128 tokens: 3 tiles for half of 4.
        self.assertAlmostEqual(gpu_model.fa3_share_needed(Fa3(64, True, 64, 64, 0), 128), 2 / 3)
        self.assertEqual(gpu_model.fa3_share_needed(Fa3(64, False, 64, 64, 0), 128), 1)


class KernelsTest(unittest.TestCase):
    def test_shared_memory_of_the_kernels(self):
        self.assertEqual(gpu_kernels.attention_shared(128), 192 * 136 * 2 + 512)
        self.assertEqual(gpu_kernels.attention_shared(256), 192 * 264 * 2 + 128 * 128 * 4)
        self.assertEqual(gpu_kernels.gemm_shared(128, 128, 3), 96 << 10)
        self.assertEqual(gpu_kernels.decode_shared(4), (96 << 10) + 16 * 264 * 2)
        self.assertEqual(gpu_kernels.decode_shared(2, True), (96 << 10) + 16 * 136 * 2)
        self.assertEqual(gpu_kernels.prefill_sm90(256).shared, 160 << 10)
        self.assertEqual(gpu_kernels.gemm_sm90("", 128, True).shared, 224 << 10)

    def test_each_name_is_known(self):
        for (_, name, registers), says in zip(REAL, SAYS):
            with self.subTest(name):
                self.assertEqual([f.what for f in figures(H100, name, WGMMA + CONVERTS, registers)], says)
        self.assertEqual([f.what for f in figures(A100, real("gemm"), CODE)], ["GEMM 128 x 128 x 3 stages"])

    def test_each_source_of_sm_90a_has_a_figure_of_names_as_it_gives_them(self):
        sources = sorted(path.stem for path in KERNELS.glob("*_sm90.cu"))
        self.assertEqual(sources, sorted(s for s in gpu_kernels.SOURCES["sm_90a"] if "sm90" in s))
        for source in gpu_kernels.SOURCES["sm_90a"]:
            text = (KERNELS / f"{source}.cu").read_text()
            kernels = {kernel: top_level(template) for template, kernel in
                       re.findall(r"template <([^{};]*?)>\n__global__[^{};]*?\b(\w+Kernel)\(", text)}
            names = [name for of, name, _ in REAL if of == source]
            self.assertTrue(names, source)
            for name in names:
                kernel, arguments = re.match(r".*?(\w+Kernel)<(.*?)>\(", name).groups()
                self.assertEqual(kernels.get(kernel), top_level(arguments), f"{name}: not of {source}.cu")
                self.assertTrue(figures(H100, name, WGMMA + CONVERTS), name)

    def test_prompts_are_bound_by_what_is_counted(self):
        # 64 columns of Q and K: 8 * 32 cycles of 64 rows and keys; of V 4 * 64; two warpgroups.
        code = code_of(*["HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24"] * 8,
                       *["HGMMA.64x128x16.F32.BF16 R88, R4, gdesc[UR12].tnspB, R88"] * 4, "@P0 BRA 0x00")
        found, = figures(H100, real("attention_sm90"), code, 168)
        self.assertEqual(found.blocks, 1)
        self.assertAlmostEqual(found.flops[1][0] / H100.peak, 1)
        self.assertEqual(found.flops[1][1], "tensor cores")
        self.assertAlmostEqual(found.flops[0][0] / H100.peak, 1024 / (1024 + 2 * 13))

    def test_large_heads_have_their_scores_twice(self):
        code = code_of(*["HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8], R24"] * 16,
                       *["HGMMA.64x128x16.F32.BF16 R88, R4, gdesc[UR12].tnspB, R88"] * 4, "@P0 BRA 0x00")
        found, = figures(H100, real("attention_sm90").replace("128", "256"), code, 168)
        # Of 1024 cycles of scores half are asked for, and all 512 of values; shared memory has 1792.
        self.assertAlmostEqual(found.flops[1][0] / H100.peak, 1024 / 1792)
        self.assertEqual(found.flops[1][1], "shared memory")

    def test_wide_tiles_of_products_and_folded_ones(self):
        for at, columns, share in ((0, 256, 1), (1, 128, 0.8)):
            code = code_of(*[f"HGMMA.64x{columns}x16.F32.BF16 R24, gdesc[UR8], R24"] * 4, "@P0 BRA 0x00")
            found, = figures(H100, real("gemm_sm90", at), code, 168)
            self.assertAlmostEqual(found.flops[1][0] / H100.peak, share)

    def test_one_warp_of_a_block_of_decode_multiplies(self):
        code = code_of(*["HMMA.16816.F32.BF16 R8, R4, R6, R8"] * 128, *["FADD R1, R1, R2"] * 8000,
                       "@P0 BRA 0x00")
        found, = figures(H100, real("attention_decode_sm90"), code, 192)
        self.assertEqual((found.what, found.blocks), ("decode D 128", 2))
        # Two steps of 32 KiB in 8129 cycles of two of four quarters.
        speed = 2 * 32 * KIB / 8129 * H100.cycles
        self.assertAlmostEqual(found.few[1][0] / speed, 1)
        self.assertEqual(found.few[1][1], "issue slots")

    def test_codes_are_read_by_two_warps_of_each_block(self):
        code = code_of("LDS.128 R4, [R2]", *["PRMT R4, R4, R5, R6"] * 997, "@P0 BRA 0x00")
        found, = figures(H100, real("attention_decode_sm90", 1), code, 165)
        self.assertEqual((found.what, found.blocks), ("decode fp8 D 64", 2))
        # Four rows of a lane for each of K and V, by two warps of each of two quarters.
        speed = 2 * 2 * 64 * 64 / (2 * 2 * 4 * 999) * H100.cycles
        self.assertAlmostEqual(found.few[1][0] / speed, 1)
        self.assertEqual(found.few[1][1], "issue slots of conversion")

    def test_few_rows_take_bytes_alone(self):
        few, = figures(H100, real("small_gemm_sm90"), WGMMA, 38)
        self.assertEqual((few.shared >> 10, few.blocks, few.few[1]), (111, 2, (H100.hbm, "HBM")))
        wide, = figures(H100, real("small_gemm_sm90", 1), WGMMA, 96)
        self.assertEqual((wide.shared >> 10, wide.blocks), (225, 1))

    def test_a_source_of_unknown_names_is_an_error(self):
        with unittest.mock.patch.object(gpu_code, "kernels_of", return_value={"OtherKernel<1>()": (1, "")}):
            with self.assertRaisesRegex(ValueError, "gemm.sm_80.cubin: of no kernel is known"):
                gpu_kernels.figures_in(pathlib.Path("cubins"), A100, pathlib.Path("cuda"))


class GoalsTest(unittest.TestCase):
    def entries(self, gpu):
        prefill = real("attention_sm90")
        names = [name for _, name, _ in REAL] + [prefill.replace("128", dim) for dim in ("64", "256")]
        found = [figure for name in names for figure in figures(gpu, name, WGMMA + CONVERTS)]
        return gpu_goals.entries_of(gpu, found, 37)

    def test_what_goes_beside_measurements_has_the_slower_figure_first(self):
        entries = self.entries(H100)
        for entry in entries:
            for part in {"flops", "bytes"} & entry.keys():
                self.assertLessEqual(*entry[part])
        self.assertEqual(entries[-2]["kernel"], gpu_goals.GATHER)
        self.assertEqual(entries[-2]["bytes"], [H100.hbm] * 2)
        self.assertAlmostEqual(entries[-1]["bytes"][0], 1 / (1 / (H100.hbm / 2) + 1 / H100.pcie))
        self.assertEqual(entries[-1]["bytes"][1], H100.pcie)

    def test_the_kernel_that_is_best_for_a_row_is_its_limit(self):
        entries = [{"kernel": "GEMM a", "flops": [1e12, 4e12], "bytes": [1e9, 2e9], "limits": ["f", "b"]},
                   {"kernel": "GEMM b", "flops": [2e12, 3e12], "bytes": [1e9, 9e9], "limits": ["g", "c"]},
                   {"kernel": "gather", "bytes": [5e9, 5e9], "limits": ["", "HBM"]}]
        reach = gpu_goals.reach_of(entries, gpu_goals.Work("GEMM", 12e12, 1e9))
        self.assertEqual((reach.low, reach.high, reach.limit), (1 / 6, 1 / 3, "f"))
        reach = gpu_goals.reach_of(entries, gpu_goals.Work("GEMM", 0, 9e9))
        self.assertEqual((reach.high, reach.limit), (1, "c"))
        self.assertEqual(gpu_goals.reach_of(entries, gpu_goals.Work("gather", 0, 5e9)).limit, "HBM")

    def test_work_of_rows_is_that_of_the_benchmark(self):
        work = gpu_goals.work_of("gemm 8B qkv 6144x4096 M=512")
        self.assertEqual((work.family, work.ops), ("GEMM", 2 * 512 * 6144 * 4096))
        self.assertEqual(work.bytes, 2 * (6144 * 4096 + 512 * 4096 + 512 * 6144))
        work = gpu_goals.work_of("gemm 8B o 4096x4096 in 8 segments M=1")
        self.assertEqual((work.family, work.bytes), ("segments", 2 * 4096 * 4096 + 6 * 4096))
        work = gpu_goals.work_of("attention prefill D=64 heads 4/2 batch 1 context 40 bf16")
        self.assertEqual((work.family, work.ops), ("prefill D 64", 4 * 4 * 64 * 40 * 41 / 2))
        self.assertEqual(work.bytes, 2 * 40 * 2 * 64 * 2 + 2 * 40 * 4 * 64 * 2)
        work = gpu_goals.work_of("attention decode D=64 heads 4/2 batch 2 context 40 fp8_e4m3")
        self.assertEqual((work.family, work.bytes),
                         ("decode fp8 D 64", 2 * 2 * 40 * 2 * 64 + 2 * 2 * 4 * 64 * 2))
        self.assertEqual(gpu_goals.work_of("gather 64 blocks of 64 planes").bytes, 2 << 27)
        self.assertEqual(gpu_goals.work_of("swap in 64 blocks of 64 planes").bytes, 1 << 27)
        self.assertIsNone(gpu_goals.work_of("rope 8B 1 token"))

    def test_rows_of_a_results_file_and_of_a_benchmark(self):
        rows = gpu_goals.measured_rows(
            "text\ngemm 1B o M=1    first   9.6 us now   9.2 us   913.0 GB/s  37.6% of copies\n"
            "a M=2              now     29.5 us   570.6 GB/s\ngather        first     93.2 us\n"
            '{"name": "b", "seconds": 0.002}\n{"name": "copies", "value": 1}\n')
        self.assertEqual(rows, {"gemm 1B o M=1": 9.2, "a M=2": 29.5, "gather": 93.2, "b": 2000})

    def test_a_step_of_8b_reads_what_serving_says(self):
        weights = gpu_goals.bytes_of_step(0, 0)
        self.assertEqual(weights, 2 * (8030261248 - 128256 * 4096 - 65 * 4096))  # Without norms.
        self.assertEqual(gpu_goals.bytes_of_step(3, 1000) - weights, 3 * 1000 * 128 << 10)

    def test_a_step_uploads_whole_arrays_and_the_tables_of_its_rows(self):
        # Tokens, positions, both of those that are wanted, and slots of 8 bytes; 37 blocks a row.
        self.assertEqual(gpu_goals.bytes_of_metadata(32, 576) - gpu_goals.bytes_of_metadata(0, 576),
                         32 * 37 * 4)
        self.assertEqual(gpu_goals.bytes_of_metadata(0, 0, most_tokens=2, most_rows=1), 2 * 24 + 4 * 11)
        line, = (line for line in gpu_goals.goal_lines(H100, self.entries(H100), gpu_model.published())
                 if "gap between" in line)
        self.assertRegex(line, r" 0\.3 us at least, for 19 KB +PCIe; beyond it the host")

    def test_each_goal_on_a_device_is_named_with_its_limit(self):
        lines = list(gpu_goals.goal_lines(H100, self.entries(H100), gpu_model.published(), "nothing"))
        for goal in ("prefill attention D 64 >= 75%", "D 128 >= 75%", "D 256 >= 45%",
                     "decode attention D 128 >= 80%", "decode attention fp8", "GEMM at M >= 512, >= 90%",
                     "GEMM at M <= 32, >= 85%", "segments at M >= 512", "8B decode step, batch 32",
                     "gap between two steps <= 100 us", "gather + pinned copy >= 40 GB/s",
                     "load >= 5 GB/s"):
            line = next(line for line in lines if goal in line)
            self.assertRegex(line, r" {2,}\S.* (HBM|PCIe|the host|tensor cores|shared memory|issue slots)")
            self.assertIn("; measured never", line)

    def test_the_gap_is_that_of_the_measured_steps_and_not_the_hosts_time(self):
        host = "  8B 1 stream host time of a step      0.07 ms\n"
        costs = '{"steps":32,"gap":31.6,"gap_of_two":8.4,"decode_step":366,"device_time":335}\n'
        self.assertEqual(gpu_goals.measured_gap(host), "")
        text = host + '{"name": "copies", "value": 1}\n' + costs
        results = '  {"name": "steps", "says": ' + json.dumps(costs.strip()) + ', "status": "passed"}'
        for said in (text, results):
            self.assertEqual(gpu_goals.measured_gap(said), "32 us with one in flight, 8 us with two")
        line, = (line for line in gpu_goals.goal_lines(H100, self.entries(H100), gpu_model.published(),
                                                       text) if "gap between" in line)
        self.assertTrue(line.endswith("; measured 32 us with one in flight, 8 us with two"), line)

    def test_a_row_beyond_what_was_computed_says_so(self):
        entries = self.entries(H100)
        for microseconds, beyond in ((100, False), (60, True)):
            line, = gpu_goals.measured_lines(entries, {"gather 64 blocks of 64 planes": microseconds})
            self.assertEqual("BEYOND" in line, beyond)

    def test_nothing_measured_is_beyond_what_was_computed(self):
        lines = COMPUTED.read_text().splitlines()
        measured = gpu_goals.measured_rows(MEASURED.read_text())
        beside = {}
        for line in lines:
            if found := re.match(r"  (\S.*?) +([\d.]+) of +(\d+) to +(\d+) (GB/s|TFLOP/s) +([\d.]+)%", line):
                name, value, _, high, unit, share = found.groups()
                work = gpu_goals.work_of(name)
                amount = work.ops * 1e-12 if unit == "TFLOP/s" else work.bytes * 1e-9
                self.assertAlmostEqual(float(value), amount / measured[name] * 1e6, delta=0.06, msg=line)
                self.assertLess(float(value), gpu_goals.ROUNDING * float(high) + 0.5, line)
                beside[name] = float(share)
        self.assertEqual(set(beside), {name for name in measured if gpu_goals.work_of(name)})
        self.assertGreater(len(beside), 200)
        self.assertNotIn("BEYOND", "\n".join(lines))

    def test_the_table_says_what_it_is(self):
        lines = "\n".join(gpu_model.fa3_lines())
        for case in gpu_model.FA3:
            self.assertIn(f"D {case.dim}", lines)
            self.assertIn(str(case.published), lines)
        found = figures(A100, real("gemm"), CODE)
        cards = [(gpu, found, 37) for gpu in (A100, H100)]
        told = "\n".join(gpu_model.tables(cards, ""))
        self.assertIn("96 KiB 1 blocks", told)
        self.assertIn("H100 gather, copies of blocks", told)
        self.assertNotRegex(told, "Measured|measured")
        beside = "\n".join(gpu_model.tables(cards, MEASURED.read_text()))
        self.assertRegex(beside, r"H100 gather \+ pinned copy >= 40 GB/s .* PCIe; measured 50 GB/s")
        self.assertRegex(beside, r"\n  gather 64 blocks of 64 planes +2880.2 of +3350 to +3350 GB/s +86.0%")


if __name__ == "__main__":
    unittest.main()
