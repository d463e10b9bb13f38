#!/usr/bin/env python3
"""What the compile gate says where it can fetch no toolkit, which ones are taken, and what it wants
of machine code and of the kernels' dialect.

Usage: compile_gate_test.py [unittest arguments]
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

import gate_memory
import machine_code

GATE = pathlib.Path(__file__).resolve().parent / "compile_gate.py"


class CompileGateTest(unittest.TestCase):
    def gate(self, script, *options):
        with tempfile.TemporaryDirectory() as folder:
            toolkit = pathlib.Path(folder) / "toolkit.sh"
            toolkit.write_text(f"#!/bin/bash\n{script}\n")
            toolkit.chmod(0o755)
            return subprocess.run([sys.executable, "-B", GATE, "--toolkit", toolkit, *options],
                                  capture_output=True, text=True, timeout=100)

    def test_slow_net_skips_and_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            half = pathlib.Path(folder) / "half"
            done = self.gate(f"trap 'rm {half}' EXIT; touch {half}; sleep 90",
                             "--fetch-limit", "1")
            self.assertLess(time.monotonic() - begin, 60)
            self.assertEqual(done.returncode, 77, done.stderr)
            self.assertIn("took more than 1.0 s", done.stdout)
            self.assertFalse(half.exists())

    def test_no_net_skips_with_the_reason(self):
        done = self.gate("echo no route to host >&2; exit 1")
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("no route to host", done.stdout)

    def test_a_toolkit_is_one_of_the_drivers_that_are_asked_for(self):
        finder = GATE.parents[3] / "kernels/cuda/toolkit.sh"
        for release, is_taken in (("12.9", False), ("13.0", True), ("13.2", True), ("14.0", False)):
            with tempfile.TemporaryDirectory() as folder:
                home = pathlib.Path(folder)
                (home / "bin").mkdir()
                for name in ("nvcc", "cuobjdump"):
                    program = home / "bin" / name
                    program.write_text(f"#!/bin/sh\necho 'Cuda tools, release {release}, V1'\n")
                    program.chmod(0o755)
                done = subprocess.run([finder, "--cached"], capture_output=True, text=True,
                                      timeout=60, check=False,
                                      env={**os.environ, "CUDA_HOME": folder,
                                           "BATON_CUDA_CACHE": f"{folder}/cache"})
                self.assertEqual((done.returncode, done.stdout.strip()),
                                 (0, folder) if is_taken else (1, ""), release)

    def test_the_ptx_of_the_dialect_is_that_of_the_manual(self):
        dialect = GATE.parents[3] / "kernels/cuda/dialect_nvcc.h"
        self.assertEqual(machine_code.statements_of(dialect.read_text()), machine_code.PTX)
        dialect = dialect.with_name("dialect_sm90_nvcc.h")
        self.assertEqual(machine_code.statements_of(dialect.read_text()), machine_code.PTX_SM90)


GEMM = "void GemmKernel<TileShape<64, 64, 32, 32, 4>, F16, float>(Problem<F16>)"
GEMM_SM90 = "void GemmSm90Kernel<F16, float, 128, true>(CUtensorMap_st, CUtensorMap_st, Problem)"
GEMM_SM90_CODE = ("FENCE.VIEW.ASYNC.S ; USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xe8 ; WARPGROUP.ARRIVE ;"
                  "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR12+0x20008], R7 ;"
                  "HGMMA.64x128x16.F32 R24, gdesc[UR16], R24 ;"
                  "HGMMA.64x128x16.F32 R24, gdesc[UR12], R24, gsb0 ;"
                  "WARPGROUP.DEPBAR.LE gsb0, 0x1 ; WARPGROUP.DEPBAR.LE gsb0, 0x0 ;"
                  "USETMAXREG.DEALLOC.CTAPOOL 0x28 ; SYNCS.ARRIVE.TRANS64 RZ, [UR9+0x20008], R2 ;"
                  "UTMALDG.3D [UR8], [UR18] ;")


# As c++filt gives them.
def small_name(rows, tokens, gated):
    return ("void baton::cuda::small_gemm_sm90::SmallGemmSm90Kernel<baton::cuda::F16, baton::cuda::F16, "
            f"{rows}, {tokens}, {gated}>(CUtensorMap_st, CUtensorMap_st, "
            "baton::cuda::small_gemm_sm90::Problem)")


def decode_name(panels, fp8):
    return (f"void baton::cuda::attention::decode::DecodeSm90Kernel<{panels}, baton::cuda::Bf16, {fp8}>"
            "(baton::cuda::attention::decode::PlaneMaps, baton::cuda::attention::decode::PlaneMaps, "
            "baton::cuda::attention::Problem, baton::cuda::attention::Scratch, unsigned int*, float)")


SMALL_SM90 = small_name(64, 8, "false")
SMALL_SM90_CODE = (re.sub("USETMAXREG[^;]*;", "", GEMM_SM90_CODE).replace("64x128", "64x8") +
                   "UCGABAR_ARV ; UCGABAR_WAIT ; ST.E.128 [R6], R24 ;")
ATTENTION_SM90 = "void AttentionSm90Kernel<128, Bf16>(Maps, Problem, Tiling, float)"
ATTENTION_SM90_CODE = (
    GEMM_SM90_CODE.replace("HGMMA.64x128x16.F32 R24, gdesc[UR16], R24 ;",
                           "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR16], RZ, !UPT ;"
                           "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR16], R24 ;")
    .replace("HGMMA.64x128x16.F32 R24, gdesc[UR12],",
             "HGMMA.64x128x16.F32.BF16 R24, R124, gdesc[UR16].tnspB,")
    + "UTMALDG.4D [UR8], [UR26] ;")
DECODE = decode_name(2, "false")
DECODE_CODE = ("FENCE.VIEW.ASYNC.S ; SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR12+0x20008], R7 ;"
               "UTMALDG.4D [UR8], [UR18] ; LDSM.16.M88.4 R4, [R8] ; LDSM.16.MT88.4 R4, [R8] ;" +
               128 * "HMMA.16816.F32.BF16 R1, R2, R3, R4 ;" +
               "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR9+0x20008], RZ ; MEMBAR.SC.GPU ; CCTL.IVALL ;"
               "ATOMG.E.INC.STRONG.GPU PT, R2, desc[UR4][R2.64], R5 ; MEMBAR.SC.GPU ; CCTL.IVALL ;")
ATTENTION = "void AttentionKernel<64, Bf16, 4>(Problem)"
GEMM_CODE = ("LDSM.16.M88.4 R4, [R8] ; LDGDEPBAR ; DEPBAR.LE SB0, 0x2 ; DEPBAR.LE SB0, 0x0 ;"
             "LDGSTS.E.BYPASS.128 [R5], desc[UR4][R6.64], !P1 ; HMMA.16816.F32 R1, R2, R3, R4 ;")
ATTENTION_CODE = (GEMM_CODE.replace("DEPBAR.LE SB0, 0x2 ;", "").replace(".F32", ".F32.BF16") +
                  "LDSM.16.MT88.4 R4, [R8+0x40] ;")


class GateMemoryTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.judged = 0

    def judge(self, made_from, problems=(), tools="tools"):
        """Whether it was judged anew, and what that says."""
        def anew():
            self.judged += 1
            return list(problems), ["a line"]
        before = self.judged
        memory = gate_memory.Memory(self.root / "passes", tools)
        says = memory.judge(made_from, anew)
        self.assertEqual(memory.reused, 1 - (self.judged - before))
        return self.judged > before, says

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def test_a_pass_is_known_by_all_that_it_was_made_from(self):
        source = self.write("a.cu", "one")
        passed = ([], ["a line"])
        self.assertEqual(self.judge(["-O3", source]), (True, passed))
        self.assertEqual(self.judge(["-O3", source]), (False, passed))
        self.assertTrue(self.judge(["-O2", source])[0])
        self.assertTrue(self.judge(["-O3", "sm_80", source])[0])
        self.assertTrue(self.judge(["-O3", source], tools="others")[0])
        self.write("a.cu", "two")
        self.assertTrue(self.judge(["-O3", source])[0])
        self.write("a.cu", "one")
        self.assertFalse(self.judge(["-O3", source])[0])

    def test_parts_do_not_run_together(self):
        self.assertNotEqual(gate_memory.digest("ab", "c"), gate_memory.digest("a", "bc"))

    def test_what_failed_is_judged_again(self):
        for _ in range(2):
            self.assertEqual(self.judge(["x"], problems=["spills"]), (True, (["spills"], ["a line"])))
        self.assertTrue(self.judge(["x"])[0])

    def test_a_pass_that_was_cut_short_is_none(self):
        self.judge(["x"])
        for file in (self.root / "passes").iterdir():
            file.write_text("[")
        self.assertTrue(self.judge(["x"])[0])

    def test_old_passes_are_given_up(self):
        self.judge(["x"])
        for file in (self.root / "passes").iterdir():
            os.utime(file, (0, 0))
        self.assertTrue(self.judge(["x"])[0])

    def test_headers_are_found_through_headers_in_the_tree_and_beside_the_source(self):
        source = self.write("k/a.cu", '#include "k/b.h"\n#include <c.h>\n  #  include "d.h"\n')
        others = [self.write("k/b.h", '#include "e.h"'), self.write("k/d.h", '#include "k/a.cu"'),
                  self.write("e.h", "")]
        self.write("c.h", "")
        self.assertEqual(gate_memory.files_of(source, self.root), sorted([source, *others]))

    def test_the_tools_are_the_toolkit_the_compiler_and_the_gate(self):
        def tools(release):
            home = self.root / "cuda"
            for name in ("nvcc", "cuobjdump"):
                (home / "bin").mkdir(parents=True, exist_ok=True)
                program = home / "bin" / name
                program.write_text(f"#!/bin/sh\necho release {release}\n")
                program.chmod(0o755)
            return gate_memory.tools(home, os.environ.get("CXX", "c++"))
        self.assertEqual(tools("13.0"), tools("13.0"))
        self.assertNotEqual(tools("13.0"), tools("13.2"))


class MachineCodeTest(unittest.TestCase):
    def test_what_is_promised_is_enough(self):
        self.assertEqual(machine_code.missing(GEMM, GEMM_CODE), [])
        self.assertEqual(machine_code.missing(ATTENTION, ATTENTION_CODE), [])
        self.assertEqual(machine_code.missing(GEMM_SM90, GEMM_SM90_CODE), [])
        self.assertEqual(machine_code.missing(SMALL_SM90, SMALL_SM90_CODE), [])
        self.assertEqual(machine_code.missing(small_name(64, 8, "true"),
                                              SMALL_SM90_CODE.replace("UCGABAR_WAIT ;", "")), [])
        self.assertEqual(machine_code.missing(ATTENTION_SM90, ATTENTION_SM90_CODE), [])
        self.assertEqual(machine_code.missing(DECODE, DECODE_CODE), [])
        self.assertEqual(machine_code.missing("void FoldKernel<Bf16>(Problem)", "FADD"), [])

    def test_each_instruction_is_missed(self):
        for name, code, text, other, says in (
                (GEMM, GEMM_CODE, "LDGDEPBAR ;", "", "no LDGDEPBAR"),
                (GEMM, GEMM_CODE, "DEPBAR.LE SB0, 0x2 ;", "", "under way"),
                (GEMM, GEMM_CODE, "0x2", "0x3", "under way"),
                (GEMM, GEMM_CODE, ", !P1", "", "what is not there"),
                (GEMM, GEMM_CODE, "LDGSTS", "LDG", "what is not there"),
                (GEMM, GEMM_CODE, "M88", "MT88", "no LDSM.16.M88.4"),
                (GEMM, GEMM_CODE, "HMMA", "FFMA", "not all products"),
                (GEMM, GEMM_CODE, ".F32 ", ".F32.BF16 ", "not all products"),
                (GEMM_SM90, GEMM_SM90_CODE, "UTMALDG.3D", "UTMALDG.2D", "no UTMALDG.3D"),
                (GEMM_SM90, GEMM_SM90_CODE, "FENCE.VIEW.ASYNC", "FENCE", "no FENCE.VIEW.ASYNC"),
                (GEMM_SM90, GEMM_SM90_CODE, "R24 ;", "R24, !UPT ;", "not all products"),
                (GEMM_SM90, GEMM_SM90_CODE, ".F32 ", ".F32.BF16 ", "not all products"),
                (GEMM_SM90, GEMM_SM90_CODE, "UTMALDG", "HMMA ; UTMALDG", "not all products"),
                (GEMM_SM90, GEMM_SM90_CODE, "gsb0, 0x1", "gsb0, 0x0", "under way"),
                (GEMM_SM90, GEMM_SM90_CODE, "USETMAXREG.DEALLOC", "NOP", "no USETMAXREG"),
                (SMALL_SM90, SMALL_SM90_CODE, "64x8", "64x16", "not all products"),
                (SMALL_SM90, SMALL_SM90_CODE, "UCGABAR_WAIT ;", "", "no UCGABAR_WAIT"),
                (SMALL_SM90, SMALL_SM90_CODE, "ST.E.128", "ST.E", "no ST.E.128"),
                (ATTENTION_SM90, ATTENTION_SM90_CODE, "UTMALDG.4D", "UTMALDG.3D", "no UTMALDG.4D"),
                (ATTENTION_SM90, ATTENTION_SM90_CODE, ".tnspB", "", "not all products"),
                (ATTENTION_SM90, ATTENTION_SM90_CODE, "RZ, !UPT", "RZ, UP0", "not all products"),
                (ATTENTION_SM90, ATTENTION_SM90_CODE, "R124, gdesc", "gdesc", "not all products"),
                (ATTENTION_SM90, ATTENTION_SM90_CODE, "gsb0, 0x1", "gsb0, 0x0", "under way"),
                (DECODE, DECODE_CODE, "UTMALDG.4D", "UTMALDG.3D", "no UTMALDG.4D"),
                (DECODE, DECODE_CODE, "ATOMG.E.INC", "ATOMG.E.ADD", "no ATOMG.E.INC"),
                (DECODE, DECODE_CODE, "MT88", "M88", "no LDSM.16.MT88.4"),
                (DECODE, DECODE_CODE, "LDSM.16.M88.4 R4, [R8] ;", "HMMA.16816.F32.BF16 ;", "128 HMMA"),
                (DECODE, DECODE_CODE, ".F32.BF16", ".F32", "not all products"),
                (DECODE, DECODE_CODE, "5 ; MEMBAR.SC.GPU", "5 ; MEMBAR.SC.CTA", "no fence"),
                (ATTENTION, ATTENTION_CODE, "0x0", "0x1", "under way"),
                (ATTENTION, ATTENTION_CODE, "MT88", "M88", "no LDSM.16.MT88.4"),
                (ATTENTION, ATTENTION_CODE, ".F32.BF16", ".F32", "not all products")):
            with self.subTest(says, text=text):
                self.assertIn(text, code)
                self.assertIn(says, "".join(machine_code.missing(name, code.replace(text, other))))

    def test_two_blocks_have_room_on_an_sm(self):
        # What a quarter of 64 Ki registers has for the 3 warps of 2 * 6, or of 2 * 5, and for 2 of 2 * 4.
        for name, most in ((decode_name(1, "false"), 168), (decode_name(2, "false"), 255),
                           (decode_name(4, "false"), 255), (decode_name(1, "true"), 168),
                           (decode_name(2, "true"), 168), (small_name(64, 8, "false"), 168),
                           (small_name(64, 64, "true"), 168)):
            with self.subTest(name):
                self.assertEqual(machine_code.too_many_registers(name, most), [])
                if most < 255:
                    says, = machine_code.too_many_registers(name, most + 1)
                    self.assertIn("16896 registers of a quarter of an SM for two blocks", says)

    def test_of_other_kernels_one_block_is_promised(self):
        for name in (GEMM, GEMM_SM90, ATTENTION_SM90, small_name(64, 128, "false"),
                     small_name(128, 128, "true")):
            with self.subTest(name):
                self.assertEqual(machine_code.too_many_registers(name, 255), [])

    def test_a_name_that_is_not_known_is_no_pass(self):
        for name in (DECODE.replace(", false>", ">"), SMALL_SM90.replace("64, 8", "8")):
            with self.subTest(name):
                says, = machine_code.too_many_registers(name, 32)
                self.assertIn("not known of such a name", says)

    def test_a_roof_has_a_product_for_each_chain(self):
        roof, product = "MultiplyOnlyKernel(float*, int)", "HMMA.16816.F32.BF16 R0, R4, R2, R0 ;\n"
        self.assertEqual(machine_code.missing(roof, 8 * product), [])
        self.assertEqual(machine_code.missing(roof, 7 * product),
                         ["7 products, not one for each of 8 chains"])
        roof = "MultiplyOnlySm90Kernel(float*, int)"
        product = "HGMMA.64x256x16.F32.BF16 R24, gdesc[UR16], R24 ;\n"
        self.assertEqual(machine_code.missing(roof, 4 * product), [])
        self.assertEqual(machine_code.missing(roof, 3 * product),
                         ["3 products, not one for each 16 of k"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
