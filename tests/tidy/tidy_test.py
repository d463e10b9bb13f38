#!/usr/bin/env python3
"""The self-test of tidy.py: each planted violation is found, and a clean tree has none."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import tidy  # noqa: E402

CLEAN = {
    "common/base/ids.h": "#pragma once\nnamespace baton {\nint One();\n}\n",
    "common/base/ids.cc": '#include "common/base/ids.h"\n#include "absl/strings/str_cat.h"\n'
                          "namespace baton {\nint One() { return 1; }\n}\n",
    "common/base/README.md": "# base\n",
    "tests/unit/common/base/ids_test.cc":
        '#include "common/base/ids.h"\nTEST(IdsTest, OneIsOne) {\n  EXPECT_EQ(1, One());\n}\n',
}


def body(lines, head="void Long()"):
    return head + " {\n" + "  F();\n" * (lines - 2) + "}\n"


def lists(**named):
    """Lists that name nothing, but for what is given."""
    empty = {field: {} for field in ("edges", "banned_exceptions", "untested", "readme_limits",
                                     "not_in_emulated", "serves_grpc")}
    return tidy.Lists(**{**empty, **named})


class TidyTest(unittest.TestCase):
    def violations(self, files, compiled=None, ninja=None, own=lists()):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {**CLEAN, **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            build = None
            if compiled is not None:
                build = root / "build"
                build.mkdir()
                (build / "compile_commands.json").write_text(
                    json.dumps([{"file": str(root / name)} for name in compiled]))
                (build / "build.ninja").write_text(ninja or "")
            found, _ = tidy.run(root, build, own)
            return [(path, line, rule) for path, line, rule, _ in found]

    def assert_found(self, rule, name, text, line=None, own=lists()):
        found = self.violations({name: text}, own=own)
        lines = [at for path, at, r in found if path == name and r == rule]
        self.assertTrue(lines, f"{rule} was not found in {name}: {found}")
        if line is not None:
            self.assertIn(line, lines)

    def assert_clean(self, name, text, own=lists()):
        rules = [v for v in self.violations({name: text}, own=own) if v[2] != "no-test"]
        self.assertEqual(rules, [])

    def test_clean_tree_has_no_violation(self):
        self.assertEqual(self.violations({}), [])

    def test_long_function_is_found_at_its_first_line(self):
        self.assert_found("function-size", "common/base/long.cc",
                          "namespace a {\n\n" + body(71) + "}\n", line=3)
        self.assert_clean("common/base/long.cc", "namespace a {\n" + body(70) + "}\n")

    def test_long_functions_of_every_form_are_found(self):
        for head in ("A::A(int a) : a_{a}, b_(2)", "auto F() -> int", "TEST_F(Suite, Claim)",
                     "template <typename T>\nvoid F(T t = {}) const noexcept",
                     "bool operator==(const A& a)", "const auto f = [](int x)"):
            with self.subTest(head=head):
                self.assert_found("function-size", "common/base/long.cc", body(72, head))

    def test_method_inside_a_class_is_measured_and_the_class_is_not(self):
        many = "".join(f"  int F{i}() {{ return {i}; }}\n" for i in range(200))
        self.assert_clean("common/base/wide.h", "#pragma once\nclass A {\n" + many + "};\n")
        self.assert_found("function-size", "common/base/wide.h",
                          "#pragma once\nclass A {\n" + many + body(71) + "};\n", line=203)

    def test_braces_in_strings_and_comments_do_not_count(self):
        text = 'const char* a = "{";  // {\nchar b = \'{\'; /* {\n{ */\nconst char* c = R"x({ ")x";\n'
        self.assert_clean("common/base/odd.cc", text + "namespace a {\n" + body(70) + "}\n")

    def test_kernel_may_be_longer_than_a_host_function(self):
        kernel = "__global__ void K(float* x)"
        self.assert_clean("kernels/cuda/k.cu", body(150, kernel))
        self.assert_found("function-size", "kernels/cuda/k.cu", body(151, kernel))

    def test_long_main_and_long_file_are_found(self):
        self.assert_found("function-size", "router/main.cc", body(61, "int main(int c, char** v)"))
        self.assert_found("file-size", "common/base/big.py", "x = 1\n" * 501, line=501)
        self.assert_found("readme-size", "common/base/README.md", "a\n" * 31)
        self.assert_found("file-size", "CMakeLists.txt", "# x\n" * 151, line=150)

    def test_line_of_more_than_100_columns_is_found(self):
        self.assert_found("columns", "common/base/wide.h", f"#pragma once\n//{'x' * 99}\n", line=2)

    def test_unmatched_braces_are_found_and_not_passed_over(self):
        self.assert_found("braces", "common/base/odd.cc", "void F() {\n")

    def test_upward_and_sideways_includes_are_found(self):
        for folder, target in (("common/base", "common/node/node.h"),
                               ("kernels/api", "common/kv_cache/kv_cache.h"),
                               ("common/kv_cache", "common/engine/engine.h"),
                               ("common/engine", "common/rpc/connection.h"),
                               ("common/node", "common/transport/tcp/socket.h"),
                               ("common/model", "kernels/cpu/gemm.h"),
                               ("router", "kernels/api/kernels.h"),
                               ("prefill_worker", "decode_worker/node.h"),
                               ("deploy/cli", "common/engine/engine.h")):
            with self.subTest(folder=folder, target=target):
                found = self.violations({f"{folder}/a.cc": f'\n#include "{target}"\n',
                                         target: "#pragma once\n"}, own=tidy.Lists())
                self.assertIn((f"{folder}/a.cc", 2, "include-edge"), found)

    def test_folder_without_an_entry_and_relative_include_are_found(self):
        self.assert_found("include-edge", "common/new/a.cc", '#include "common/base/ids.h"\n')
        self.assert_found("include-path", "common/base/a.cc", '#include "../base/ids.h"\n')
        self.assert_found("include-path", "common/base/a.cc", '#include "ids.h"\n')

    def test_generated_protobuf_types_stop_at_the_edge(self):
        include = '#include "baton/v1/cluster.pb.h"\n'
        self.assert_found("protobuf", "common/engine/a.cc", include)
        self.assert_clean("common/rpc/a.cc", include)
        self.assert_found("protobuf", "router/router_service.cc", include)
        name, serves = "router/inference_service.cc", '#include "baton/v1/inference.grpc.pb.h"\n'
        self.assert_found("protobuf", name, serves)
        own = lists(serves_grpc={name: "baton.v1.Inference"})
        self.assert_clean(name, serves, own=own)
        self.assertIn((tidy.HERE, 1, "stale-exception"), self.violations({name: "\n"}, own=own))

    def test_banned_calls_are_found_in_code_and_not_in_comments(self):
        for token in ("std::chrono::steady_clock::now();", "gpr_now(GPR_CLOCK_REALTIME);",
                      "std::time(nullptr);", "std::this_thread::sleep_for(d);",
                      "std::thread t;", "std::jthread t;", "std::async(f);",
                      "boost::asio::thread_pool p(2);",
                      "std::random_device r;", 'getenv("A");'):
            with self.subTest(token=token):
                self.assert_found("banned", "common/base/a.cc", f"\nauto x = {token}\n", line=2)
                self.assert_clean("common/base/a.cc", f"// {token}\n")
        self.assert_clean("tests/kernels/a.cc", "std::jthread t;\n")
        self.assert_clean("common/base/a.cc", "int n = std::jthread::hardware_concurrency();\n")
        self.assert_clean("common/base/a.cc", "std::jthread t;\n",
                          lists(banned_exceptions={("common/base/a.cc", "std::jthread"): "why"}))

    def test_statement_on_a_line_of_its_own_without_braces_is_found(self):
        for text in ("if (a)\n  F();\n", "for (int i = 0; i < G(2);\n     ++i)\n  F();\n",
                     "while (a)\n  F();\n", "if constexpr (a)\n  F();\n",
                     "if (a) {\n  F();\n} else\n  F();\n", "if (a) F(1,\n         2);\n"):
            with self.subTest(text=text):
                self.assert_found("statement-braces", "tests/sim/a.cc", f"void G() {{\n{text}}}\n")
        self.assert_clean("tests/sim/a.cc", "void G() {\n  if (a) F();\n  else F();\n"
                          "  if (a) {\n    F();\n  } else if (b) {\n    F();\n  } else {\n    F();\n  }\n"
                          "  if (a &&\n      b) {\n    F();\n  }\n  while (F(\n      2)) F();\n}\n")

    def test_braces_around_a_statement_that_fits_on_the_line_are_found(self):
        for head in ("if (a)", "while (F(2))", "for (int x : y)"):
            with self.subTest(head=head):
                self.assert_found("statement-braces", "tests/sim/a.cc",
                                  f"void G() {{\n  {head} {{\n    F(1);\n  }}\n}}\n", line=2)
        for body in ("F();  // Why.", "for (;;) F();", f"F({'a' * 90});", "F();\n    F();",
                     "F(1,\n      2);", "struct A {};",
                     "ASSIGN_OR_RETURN(b, F());", "EXPECT_EQ(1, 1);"):
            with self.subTest(body=body):
                self.assert_clean("tests/sim/a.cc",
                                  f"void G() {{\n  if (a) {{\n    {body}\n  }}\n}}\n")

    def test_header_without_pragma_once_is_found(self):
        self.assert_found("pragma-once", "common/base/a.h", "int F();\n")

    def test_names_that_say_nothing_are_found(self):
        for name in ("router/utils.h", "router/misc.cc", "router/common.h", "deploy/helpers.py"):
            with self.subTest(name=name):
                self.assert_found("file-name", name, "#pragma once\n")
        for claim in ("Basic", "Works", "Test1", "TestAllocator", "Foo"):
            with self.subTest(claim=claim):
                self.assert_found("test-name", "tests/unit/a_test.cc",
                                  f"TEST(IdsTest, {claim}) {{}}\n")
        self.assert_found("test-name", "tests/clients/a_test.py",
                          "class A:\n    def test_chat(self):\n        pass\n", line=2)

    def test_source_without_a_test_is_found(self):
        self.assert_found("no-test", "common/base/lonely.cc", "int x;\n")
        self.assert_clean("router/main.cc", "int x;\n")

    def assert_list_is_false(self, rule, files=None, compiled=None, **named):
        found = self.violations(files or {}, compiled, own=lists(**named))
        self.assertEqual([rule], [v[2] for v in found if v[0] == tidy.HERE], found)

    def test_exception_that_is_no_longer_needed_is_found(self):
        ids = "common/base/ids.cc"
        self.assert_list_is_false("stale-exception", untested={ids: "why"})
        self.assert_list_is_false("stale-exception", banned_exceptions={(ids, "getenv"): "why"})
        self.assert_list_is_false("stale-exception", readme_limits={"common/base/README.md": 90})
        self.assert_list_is_false("stale-exception", compiled=[ids], not_in_emulated={ids: "why"})

    def test_list_that_names_a_missing_file_is_found(self):
        gone = "common/base/gone.cc"
        self.assert_list_is_false("missing-file", untested={gone: "why"})
        self.assert_list_is_false("missing-file", untested={"main.cc": "why"})
        self.assert_list_is_false("missing-file", banned_exceptions={(gone, "getenv"): "why"})
        self.assert_list_is_false("missing-file", readme_limits={"kernels/README.md": 90})
        self.assert_list_is_false("missing-file", not_in_emulated={gone: "why"})
        self.assert_list_is_false("missing-file", edges={"common/gone": []})

    def test_edge_that_nothing_uses_is_found(self):
        user = {"router/a.cc": '#include "router/text/b.h"\n#include "common/base/ids.h"\n',
                "router/text/b.h": "#pragma once\n"}
        self.assert_clean_lists(user, edges={"router": ["router/text"]})
        self.assert_list_is_false("unused-edge", user,
                                  edges={"router": ["router/text", "common/http"]})
        self.assert_list_is_false("unused-edge", user,
                                  edges={"router": ["router/text", "common/base"]})

    def assert_clean_lists(self, files, **named):
        self.assertEqual([], [v for v in self.violations(files, own=lists(**named))
                              if v[2] != "no-test"])

    def test_include_of_a_file_that_is_gone_is_found(self):
        for name in ("router/a.cc", "tests/sim/a.cc"):
            self.assert_found("missing-file", name, '\n#include "router/gone.h"\n', line=2)

    def test_key_that_stands_twice_is_found(self):
        self.assert_found("duplicate-key", "tests/a.py", 'a = {"x": 1, "y": 1,\n     "x": 2}\n')
        self.assert_clean("tests/a.py", 'a = {"x": 1, **{"x": 2}, **{}}\n')

    def test_comment_that_cites_a_document_outside_the_tree_is_found(self):
        gone = "protocol" + ".md"
        for name, comment in (("common/base/a.h", "#pragma once\n//"), ("tests/a.py", "\n#"),
                              ("tests/sim/CMakeLists.txt", "\n#"), ("proto/a.proto", "\n//"),
                              ("tests/a.sh", "\n#")):
            with self.subTest(name=name):
                self.assert_found("missing-file", name, f"{comment} {gone}, section 2\n", line=2)
                self.assert_clean(name, f"{comment} base/README.md, section 2\n")

    def test_document_that_names_a_missing_file_is_found(self):
        for text in ("`ids_of.h`", "`common/based`", "`base/ids.py`", "[a](ids.cc)", "[a](base)"):
            with self.subTest(text=text):
                self.assert_found("missing-file", "ARCHITECTURE.md", f"\n{text}\n", line=2)
        self.assert_clean("common/base/README.md",
                          "`ids.h` `common/base/` `base/ids.cc` `ids` [a](ids.cc#L2) [b](../base)\n"
                          "[c](https://example.org/x" ".md) `a.b/c`\n")

    def test_document_whose_paths_a_formatter_tore_is_found(self):
        for text in ("`tests / unit / ids_test.cc`", "`base / ids.h`"):
            with self.subTest(text=text):
                self.assert_found("torn-path", "ARCHITECTURE.md", f"\n{text}\n", line=2)
                self.assert_found("torn-path", "common/base/README.md", f"\n{text}\n", line=2)
                self.assert_clean("common/base/notes.py", f"# {text}\n")
        self.assert_clean("common/base/README.md", "`ids` / `ids.h`, a / b, `base/ids.h`\n")

    def test_cited_name_that_the_code_lacks_is_found(self):
        declared = "#pragma once\nclass Clock {\n  void Wind();\n};\n"
        files = {"common/base/clock.h": declared,
                 "common/base/clock.cc": "void Clock::Wind() { Tick(); }\n"}

        def found(text):
            documents = {"ARCHITECTURE.md": text}
            return [(line, rule) for path, line, rule in self.violations({**files, **documents})
                    if path == "ARCHITECTURE.md"]
        self.assertEqual(found("`Clock::Wind`; `One` (`common/base/ids.cc`), std `std::visit`"), [])
        self.assertEqual(found("`Clock::Wind` and `Tick` (`clock.cc`)"), [])
        self.assertEqual(found("a\n`Clock::One` is of another"), [(2, "citation")])
        self.assertEqual(found("`Watch::Wind` is of no class"), [(1, "citation")])
        self.assertEqual(found("`Tick` (`common/base/ids.cc`)"), [(1, "citation")])
        self.assertEqual(found("`One`, `Tick` (`ids.cc`)"), [(1, "citation")])

    def test_bound_that_is_not_the_constants_value_is_found(self):
        head = "**Bounds**\n| what | limit | where |\n|---|---|---|\n"
        code = ("common/base/limits.h", "#pragma once\nDuration hold_limit = std::chrono::seconds(2);\n"
                "Duration hang_limit = std::chrono::milliseconds(2500);\nint kLeast = 4096;\n"
                "int kept_s = 3600;\n")

        def found(limit, names):
            page = head + f"| x | {limit} | {names}, `common/base/limits.h` |\n\n| y | 9 s | `z` |\n"
            return [v[1:] for v in self.violations(dict([code, ("ARCHITECTURE.md", page)]))]

        for limit, name in (("2 s, later 12.5 s", "hold_limit"), ("2.5 s", "hang_limit"),
                            ("at 2,500 ms", "hang_limit"), ("4,096", "kLeast"),
                            ("3,600 s", "kept_s")):
            self.assertEqual(found(limit, f"`{name}`"), [], limit)
        for limit, name in (("12 s", "hold_limit"), ("2 sheep", "hold_limit"), ("5 s", "hang_limit"),
                            ("4,095", "kLeast"), ("3,600 ms", "kept_s"), ("2 s", "gone_limit")):
            self.assertEqual(found(limit, f"`{name}`"), [(4, "bound")], limit)
        self.assertEqual(found("2 s and 2.5 s", "`hold_limit`, `hang_limit`"), [])
        self.assertEqual(found("2 s", "`hold_limit`, `hang_limit`"), [(4, "bound")])

    def test_cited_invariant_that_is_not_defined_is_found(self):
        page = ("ARCHITECTURE.md", "| I1 | blocks | x |\n| I11 | caps | y |\n")
        for text, rules in (('Fail("I11: full")', []), ('Fail("I2: two")', ["invariant"])):
            name = "tests/sim/ledger.cc"
            got = self.violations(dict([page, (name, f"void F() {{ {text}; }}\n")]))
            self.assertEqual([rule for path, _, rule in got if path == name], rules)

    def test_source_that_nothing_builds_is_found(self):
        all_sources = [name for name in CLEAN if name.endswith(".cc")]
        self.assertEqual(self.violations({}, compiled=all_sources), [])
        self.assertIn(("common/base/ids.cc", 1, "not-built"),
                      self.violations({}, compiled=all_sources[1:]))

    def test_build_that_was_never_configured_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            found, _ = tidy.run(pathlib.Path(folder), pathlib.Path(folder) / "build", lists())
            self.assertEqual([rule for _, _, rule, _ in found], ["not-built"])

    def test_a_batch_counts_for_what_it_includes(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "unity_0_cxx.cxx").write_text('/* made */\n#include "/src/a.cc"\n')
            commands = folder / "compile_commands.json"
            commands.write_text(json.dumps([{"file": str(folder / "unity_0_cxx.cxx")}]))
            self.assertIn(pathlib.Path("/src/a.cc"), tidy.compiled_files(commands))

    def test_router_that_links_kernels_is_found(self):
        edge = "build bin/baton-router: CXX_LINK x.o\n  LINK_LIBRARIES = lib/libbaton_rpc.a {}\n\n"
        sources = [name for name in CLEAN if name.endswith(".cc")]
        self.assertEqual(self.violations({}, sources, edge.format("")), [])
        self.assertIn("router-kernels", [v[2] for v in self.violations(
            {}, sources, edge.format("lib/libbaton_kernels_cpu.a"))])


if __name__ == "__main__":
    unittest.main(verbosity=2)
