#!/usr/bin/env python3
"""The arithmetic of gpu_model.py, by cases that were computed by hand.

Usage: gpu_model_test.py [unittest arguments]
"""
import unittest

import gpu_model
from gpu_model import GPUS, Fa3, Loop

A100, H100, H200 = GPUS

# A loop of five instructions of a warp, two of them products, in one of three; and an `if`.
CODE = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0020*/                   HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
        /*0030*/                   HMMA.16816.F32.BF16 R12, R4, R7, R12 ;
        /*0040*/                   MUFU.EX2 R3, R3 ;
        /*0050*/              @P0  BRA 0x10 ;
        /*0060*/              @P1  BRA 0x00 ;
        /*0070*/              @P2  BRA 0x90 ;
"""


class GpuModelTest(unittest.TestCase):
    def test_peaks_are_those_of_the_data_sheets(self):
        self.assertAlmostEqual(A100.peak / 1e12, 312, delta=1)
        self.assertAlmostEqual(H100.peak / 1e12, 989.4, delta=1)
        self.assertEqual(H200.peak, H100.peak)

    def test_blocks_are_bounded_by_threads_registers_and_shared_memory(self):
        self.assertEqual(gpu_model.blocks_per_sm(A100, 256, 16, 0), 8)  # 2048 threads
        self.assertEqual(gpu_model.blocks_per_sm(A100, 128, 255, 0), 2)  # 128 * 256 of 65536
        self.assertEqual(gpu_model.blocks_per_sm(A100, 128, 32, 40 << 10), 4)  # 4 * 41 = 164 KiB
        self.assertEqual(gpu_model.blocks_per_sm(H100, 128, 32, 40 << 10), 5)  # 5 * 41 of 228

    def test_the_loop_with_the_products_is_the_smallest_that_has_them(self):
        self.assertEqual(gpu_model.loop_of(CODE), Loop(all=5, products=2, ldsm=1, copies=0, mufu=1))

    def test_a_product_takes_8_cycles_of_a_partition_of_an_a100(self):
        limits = gpu_model.limits_of_loop(A100, Loop(20, 2, 1, 1, 3))
        self.assertEqual(limits["tensor cores (mma.sync)"], 16)
        self.assertEqual(limits["shared memory"], 32)  # 1,024 bytes, of 32 a cycle.
        self.assertEqual(limits["issue slots"], 20)
        self.assertEqual(limits["exponentials"], 24)  # 96, of 4 a cycle.
        flops, limit = gpu_model.reach_of_loop(A100, Loop(20, 2, 1, 1, 3))
        self.assertEqual(limit, "shared memory")
        self.assertAlmostEqual(flops, A100.peak / 2)
        self.assertAlmostEqual(gpu_model.reach_of_loop(A100, Loop(4, 2))[0], A100.peak)

    def test_bytes_under_way_bound_the_speed_of_memory(self):
        speed, limit = gpu_model.reach_of_bytes(A100, 466)
        self.assertEqual(limit, "occupancy")
        self.assertAlmostEqual(speed, 108 * 1.41e9)  # A byte a cycle of each SM.
        self.assertEqual(gpu_model.reach_of_bytes(A100, 1 << 20), (2.039e12, "HBM"))
        self.assertEqual(gpu_model.reach_of_bytes(A100, 1 << 20, 2), (2.039e12 / 2, "HBM"))

    def test_few_rows_are_bound_by_memory_or_by_the_warps_that_multiply(self):
        loop = Loop(160, 2)  # 10 times what its products take.
        speed, limit = gpu_model.reach_of_few_rows(A100, loop, 1 << 20, 2)
        self.assertEqual(limit, "issue slots")
        self.assertAlmostEqual(speed, A100.peak / 10 / 2 / 16)
        self.assertEqual(gpu_model.reach_of_few_rows(A100, Loop(4, 2), 1 << 20, 4),
                         (2.039e12, "HBM"))

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

    def test_shared_memory_of_the_kernels(self):
        self.assertEqual(gpu_model.attention_shared(128), 192 * 136 * 2 + 512)
        self.assertEqual(gpu_model.attention_shared(256), 192 * 264 * 2 + 128 * 128 * 4)
        self.assertEqual(gpu_model.gemm_shared(128, 128, 3), 96 << 10)
        self.assertEqual(gpu_model.decode_shared(4), (96 << 10) + 16 * 264 * 2)

    def test_one_warp_of_a_block_of_decode_multiplies(self):
        h100, loop = gpu_model.GPUS[1], Loop(1000, 128, 0, 0, 0)
        figures, = gpu_model.figures_of(h100, {"void DecodeSm90Kernel<2, baton::Bf16>(P)": (192, loop)})
        self.assertEqual((figures.what, figures.blocks), ("decode D 128", 2))
        # 128 products in 1000 cycles of two of four quarters.
        flops = 2 * 128 * 4096 / 1000 * 132 * 1.83e9
        self.assertAlmostEqual(figures.flops[0][0] / flops, 1)
        self.assertAlmostEqual(figures.few[0][0] / min(flops / 16, h100.hbm), 1)

    def test_the_table_says_what_it_is(self):
        lines = "\n".join(gpu_model.fa3_lines())
        for case in gpu_model.FA3:
            self.assertIn(f"D {case.dim}", lines)
            self.assertIn(str(case.published), lines)
        loop = Loop(60, 16, 4, 2, 0)
        name = "void GemmKernel<TileShape<128, 128, 64, 32, 3>, baton::Bf16, baton::Bf16>(P)"
        line, = gpu_model.kernel_lines(A100, {name: (128, loop), "other": (1, loop)})
        self.assertIn("96 KiB 1 blocks", line)
        self.assertIn("312 TFLOP/s = 100% (tensor cores", line)

    def test_what_goes_beside_measurements_has_the_slower_figure_first(self):
        loop = Loop(256, 16, 4, 2, 0)
        names = {"void AttentionKernel<64, baton::Bf16, 4>(P)": (128, loop),
                 "void GemmKernel<TileShape<128, 128, 64, 32, 3>, baton::Bf16, baton::Bf16>(P)":
                     (128, loop)}
        attention, gemm, gather = gpu_model.for_bench(A100, names, 37)
        self.assertEqual([attention["kernel"], gemm["kernel"]],
                         ["attention D 64, 4 warps", "GEMM 128 x 128 x 3 stages"])
        self.assertAlmostEqual(gemm["flops"][0], A100.peak / 2)  # 16 times 8 cycles, of 256.
        self.assertAlmostEqual(gemm["flops"][1], A100.peak)
        self.assertAlmostEqual(attention["flops"][0], attention["flops"][1] / 2)
        # Each byte of weights takes 128 FLOP of a whole tile.
        self.assertAlmostEqual(gemm["bytes"][0], A100.peak / 2 / 128)
        self.assertEqual(gemm["bytes"][1], A100.hbm)
        self.assertEqual(gather, {"kernel": gpu_model.GATHER, "bytes": [A100.hbm, A100.hbm]})

    def test_few_rows_take_bytes_alone(self):
        name = "void SmallGemmSm90Kernel<baton::Bf16, baton::Bf16, 64, 8, false>(P)"
        few, gather = gpu_model.for_bench(H100, {name: (31, Loop())}, 37)
        self.assertEqual(few, {"kernel": "GEMM, up to 8 rows", "flops": [8 * H100.hbm] * 2,
                               "bytes": [H100.hbm] * 2})
        self.assertEqual(gather["kernel"], gpu_model.GATHER)
        line, = gpu_model.kernel_lines(H100, {name: (31, Loop())})
        self.assertIn("111 KiB 2 blocks", line)
        self.assertIn("; 8 rows: 3.35 TB/s (HBM)", line)

    def test_of_more_rows_a_block_has_an_sm(self):
        name = "void SmallGemmSm90Kernel<baton::Bf16, baton::Bf16, {}, 128, false>(P)"
        narrow, wide = sorted(gpu_model.figures_of(
            H100, {name.format(rows): (98, Loop()) for rows in (64, 128)}), key=lambda f: f.what)
        self.assertEqual([(f.what, f.shared >> 10, f.blocks) for f in (narrow, wide)],
                         [("GEMM, up to 128 rows", 225, 1), ("GEMM, up to 128 rows, wide", 225, 1)])

    def test_what_may_be_left_out_is_no_product_tile_copy_or_exponential(self):
        self.assertEqual(gpu_model.bare(Loop(60, 16, 4, 2, 3)), Loop(25, 16, 4, 2, 3))


if __name__ == "__main__":
    unittest.main()
