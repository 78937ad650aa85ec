# SPDX-License-Identifier: Apache-2.0
"""Each check script finds the fault that it is for, and accepts a tree without it."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
HEAD = "// SPDX-License-Identifier: Apache-2.0\n// A file that a test made.\n"
sys.path.insert(0, str(SCRIPTS))


class CheckCase(unittest.TestCase):
    """Writes a small tree, runs one check script over it, compares what it says."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, name, text=""):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run_check(self, script, environment=None):
        command = [sys.executable, str(SCRIPTS / script), "--root", str(self.root)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def accepts(self, script):
        result = self.run_check(script)
        self.assertEqual((result.returncode, result.stdout + result.stderr), (0, ""))

    def refuses(self, script, *messages):
        result = self.run_check(script)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        for message in messages:
            self.assertIn(message, result.stdout)


class Layers(CheckCase):
    def include(self, name, line):
        self.write("src/core/error.h", HEAD)
        self.write("src/model/llama.h", HEAD)
        self.write("src/backend/backend.h", HEAD)
        self.write("src/backend/cuda/arena.h", HEAD)
        self.write(name, HEAD + line + "\n")

    def test_downward_include_is_accepted(self):
        self.include("src/train/trainer.h", '#include "model/llama.h"')
        self.accepts("check_layers.py")

    def test_upward_include_is_refused(self):
        self.include("src/io/reader.cpp", '#include "model/llama.h"')
        self.refuses("check_layers.py", "src/io/reader.cpp:3: upward include of 'model/llama.h'")

    def test_include_with_spaces_is_seen(self):
        self.include("src/io/reader.cpp", '  #  include "model/llama.h"')
        self.refuses("check_layers.py", "upward include")

    def test_backend_that_knows_a_config_is_refused(self):
        self.write("src/config/model_config.h", HEAD)
        self.include("src/backend/cpu/ops.cpp", '#include "config/model_config.h"')
        self.refuses("check_layers.py", "backend must not know config")

    def test_file_of_one_backend_is_refused_elsewhere(self):
        self.include("src/train/trainer.cpp", '#include "backend/cuda/arena.h"')
        self.refuses("check_layers.py", "inside one backend")

    def test_cuda_header_outside_its_folders_is_refused(self):
        self.include("src/offload/engine.cpp", "#include <cuda_runtime.h>")
        self.refuses("check_layers.py", "CUDA header 'cuda_runtime.h'")

    def test_cuda_header_in_kernels_is_accepted(self):
        self.include("kernels/adamw.cu", "#include <cuda_runtime.h>")
        self.accepts("check_layers.py")

    def test_third_party_header_in_a_header_is_refused(self):
        for header in ("Eigen/Core", "spdlog/spdlog.h", "CLI/CLI.hpp", "toml++/toml.h", "nlohmann/json.hpp"):
            self.include("src/model/layer.h", f"#include <{header}>")
            self.refuses("check_layers.py", f"third-party header '{header}'")

    def test_third_party_header_in_a_source_is_accepted(self):
        self.include("src/model/layer.cpp", "#include <Eigen/Core>")
        self.accepts("check_layers.py")

    def test_missing_header_is_refused(self):
        self.include("src/model/layer.cpp", '#include "model/nothing.h"')
        self.refuses("check_layers.py", "is not found")

    def test_unknown_folder_is_refused(self):
        self.write("src/extra/thing.cpp", HEAD)
        self.refuses("check_layers.py", "'extra' is no layer")


class Source(CheckCase):
    def test_good_file_is_accepted(self):
        self.write("src/core/good.cpp", HEAD + 'TEST' '_CASE("name", "[tag]") {}\n')
        self.write("scripts/run.sh", "#!/bin/sh\n" + HEAD.replace("//", "#"))
        self.accepts("check_source.py")

    def test_each_fault_is_refused(self):
        cases = {
            "int x;\n": ":1: the first line must be",
            HEAD.splitlines()[0] + "\n// Code.\n": ":2: the second line must say the purpose",
            HEAD + "// TO" + "DO later\n": "leftover mark",
            HEAD + "using name" + "space std;\n": "name what is used of std",
            HEAD + "\tint x;\n": "tab",
            HEAD + "int x; \n": "trailing space",
            HEAD + "int x;\r\n": ":3: carriage return",
            HEAD + "int x;": "no newline",
            HEAD + 'TEST' '_CASE("in [0, 1)") {}\n': ":3: bracket or semicolon",
            HEAD + 'TEST' '_CASE("a; b", "[tag]") {}\n': ":3: bracket or semicolon",
            HEAD + "int x;\n" * 499: "501 lines, at most 500",
        }
        for text, message in cases.items():
            (self.root / "src").mkdir(exist_ok=True)
            (self.root / "src/file.cpp").write_bytes(text.encode())
            self.refuses("check_source.py", message)

    def test_script_without_head_is_refused(self):
        self.write(".ci/run", "#!/usr/bin/env bash\necho\n")
        self.refuses("check_source.py", ".ci/run:1: the first line")

    def test_name_that_is_not_snake_case_is_refused(self):
        self.write("src/core/BadName.cpp", HEAD)
        self.refuses("check_source.py", "'BadName.cpp' is not snake_case")


class Paths(CheckCase):
    def test_paths_inside_are_accepted(self):
        self.write("README.md", "see `/usr/lib`, either/or, tokens/s, https://x.org/a/b\n")
        self.write("docs/page.md", "see [it](../README.md)\n")
        self.write("tests/file_test.cpp", 'read(ROOT "/docs/page.md"); pointer("/a/0");\n')
        self.accepts("check_paths.py")

    def test_path_of_a_machine_is_refused(self):
        for path in ("/ho" + "me/ada/ferry", "/da" + "ta1/set.bin"):
            self.write("src/file.cpp", f'open("{path}");\n')
            self.refuses("check_paths.py", "src/file.cpp:1:", "is a path of one machine")

    def test_path_out_of_the_repository_is_refused(self):
        self.write("README.md", "see ../other/file.txt\n")
        self.refuses("check_paths.py", "leaves the repository")

    def test_relative_path_to_nothing_is_refused(self):
        self.write("docs/page.md", "see ../gone.txt\n")
        self.refuses("check_paths.py", "points to nothing")


class Docs(CheckCase):
    def test_true_page_is_accepted(self):
        self.write("docs/cli.md", "`--quiet`, `./name`\n\n| `save_every` | 0 |\n")
        self.write("src/core/error.h")
        self.write("README.md", "[cli](docs/cli.md#x), `core/error.h`, `src/core/`\n")
        self.write("scripts/draw.py", "--width\n")
        self.write("docs/page.md", "`build/cpu/ferry train --save-every 3 --quiet`, `--save-every`, `--width`\n")
        self.accepts("check_docs.py")

    def test_dead_link_is_refused(self):
        self.write("README.md", "[gone](docs/gone.md)\n")
        self.write("data/README.md", "[gone](gone.md)\n")
        self.refuses("check_docs.py", "README.md:1: link to 'docs/gone.md'", "data/README.md:1: link to 'gone.md'")

    def test_missing_file_is_refused(self):
        self.write("src/core/error.h")
        self.write("README.md", "`src/core/gone.h`\n")
        self.refuses("check_docs.py", "names 'src/core/gone.h'")

    def test_unknown_flag_is_refused(self):
        self.write("docs/cli.md", "`--steps`\n")
        self.write("README.md", "```\nbuild/cpu/ferry train --stepz 3\n```\n")
        self.refuses("check_docs.py", "README.md:2: flag --stepz is not in docs/cli.md")

    def test_unknown_flag_of_a_script_is_refused(self):
        self.write("scripts/go.sh", "--quick\n")
        self.write("README.md", "`./scripts/go.sh --quick` `./scripts/go.sh --slow`\n")
        self.refuses("check_docs.py", "flag --slow is not in scripts/go.sh")


class Tools(CheckCase):
    """Checks that need another program: refused where it is there, skipped (never passed) where it is not."""

    def refuses_or_skips(self, script, message):
        result = self.run_check(script)
        if result.returncode == 77:
            self.assertIn("skipped: ", result.stdout)
            self.skipTest(result.stdout.strip())
        self.refuses(script, message)

    def test_unformatted_file_is_refused(self):
        self.write(".clang-format", "BasedOnStyle: Google\n")
        self.write("src/file.cpp", "int   x;\n")
        self.refuses_or_skips("check_format.py", "src/file.cpp: not formatted")

    def test_shell_fault_is_refused(self):
        self.write("scripts/go.sh", "#!/bin/bash\ncd $1\n")
        self.refuses_or_skips("check_shell.py", "scripts/go.sh:2:")

    def test_missing_tool_skips_or_fails_when_it_must_run(self):
        self.write("src/file.cpp", "int x;\n")
        result = self.run_check("check_format.py", {"PATH": ""})
        self.assertEqual((result.returncode, result.stdout[:9]), (77, "skipped: "))
        result = self.run_check("check_format.py", {"PATH": "", "FERRY_CHECKS_MUST_RUN": "1"})
        self.assertEqual((result.returncode, result.stdout[:8]), (1, "FAILED: "))


if __name__ == "__main__":
    unittest.main()
