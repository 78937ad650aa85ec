# SPDX-License-Identifier: Apache-2.0
"""The scripts that measure ferry beside others read its output, set their results out, and refuse what cannot work."""
import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import bench_adamw_peers  # noqa: E402
import bench_report  # noqa: E402
import compare_offload  # noqa: E402

STEP_OUTPUT = """\
backend   cuda: NVIDIA H200
plan      all: layers travel one by one; 2 weight and 2 gradient slots
step      median 223.250 ms (221.104 to 230.500), 12 steps after 3 untimed
speed     36.7k tokens/s
MFU       30.1 % of 990 TFLOP/s: 66.4 TFLOP of the model per step, 298 TFLOP/s
adamw     191.000 ms busy on the CPU
memory    512 MiB device, 9.3 GiB host
"""
ADAMW_OUTPUT = """\
backend   cpu: Xeon, avx512, 14 threads
AdamW     268M parameters in pieces of 16 MiB, avx512; GB/s, and the share of the pass in place
threads    triad  in place          f32 (26 B)         bf16 (14 B) bf16 nearest (14 B)
      2     15.3      24.6           25.0 1.02           24.1 0.98           25.9 1.05
f32: 25.0 GB/s on 2 threads, 1.02 of the fastest pass in place, 1039.1 ms per billion parameters
bf16: 24.1 GB/s on 2 threads, 0.98 of the fastest pass in place, 580.6 ms per billion parameters
bf16 nearest: 25.9 GB/s on 2 threads, 1.05 of the fastest pass in place, 540.3 ms per billion parameters
"""


class FerryOutput(unittest.TestCase):
    def test_time_and_memory_of_a_step_are_read(self):
        self.assertEqual(bench_report.read_step_bench(STEP_OUTPUT),
                         {"step_s": 0.22325, "device_bytes": 512 * 2**20, "host_bytes": 9.3 * 2**30})

    def test_output_without_memory_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "no memory in ferry's output"):
            bench_report.read_step_bench(STEP_OUTPUT.replace("memory", "weight"))

    def test_each_format_of_adamw_is_read(self):
        rows = bench_report.read_adamw_bench(ADAMW_OUTPUT)
        self.assertEqual(list(rows), ["f32", "bf16", "bf16 nearest"])
        self.assertEqual(rows["bf16 nearest"], {"bytes": 14, "gb_s": 25.9, "threads": 2, "ms_per_billion": 540.3})
        self.assertEqual(rows["f32"]["bytes"], 26)

    def test_a_format_that_the_header_lacks_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "expected a header and a line for each format"):
            bench_report.read_adamw_bench(ADAMW_OUTPUT.replace("bf16 nearest (14 B)", ""))

    def test_a_failing_ferry_is_quoted(self):
        with self.assertRaisesRegex(RuntimeError, "(?s)ended with 3:.*no such GPU"):
            code = "import sys; print('no such GPU', file=sys.stderr); sys.exit(3)"
            bench_report.run_ferry([sys.executable, "-c", code])


class Limits(unittest.TestCase):
    def groups(self, files):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name, text in files.items():
            path = Path(folder.name) / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        return Path(folder.name)

    def quota(self, files):
        return bench_report.cpu_quota(self.groups(files))

    def left(self, files):
        return bench_report.left_in_group(self.groups(files))

    def test_the_quota_of_either_version_counts(self):
        self.assertEqual(self.quota({"cpu.max": "1600000 100000"}), 16)
        self.assertEqual(self.quota({"cpu/cpu.cfs_quota_us": "450000", "cpu/cpu.cfs_period_us": "100000"}), 4)

    def test_without_a_quota_there_is_none(self):
        self.assertIsNone(self.quota({}))
        self.assertIsNone(self.quota({"cpu.max": "max 100000"}))
        self.assertIsNone(self.quota({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}))

    def test_cached_files_do_not_count_as_used(self):
        self.assertEqual(self.left({"memory.max": "1000", "memory.current": "700",
                                    "memory.stat": "anon 1\ninactive_file 200"}), 500)
        self.assertEqual(self.left({"memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "700",
                                    "memory/memory.stat": "cache 1"}), 300)
        self.assertIsNone(self.left({"memory.max": "max", "memory.current": "700"}))


class Results(unittest.TestCase):
    def test_steps_are_held_against_pytorch(self):
        runs = {"ferry": {"step_s": 0.2, "device_bytes": 2e9},
                compare_offload.pytorch_name("overlapped"): {"step_s": 0.4, "device_bytes": 7e9}}
        self.assertEqual(compare_offload.table(runs, 8192).splitlines(), [
            "run                                  step, ms  tokens/s  device GB  x speed  x less memory",
            "ferry                                   200.0    40,960       2.00     2.00           3.50",
            "PyTorch, layer by layer, overlapped     400.0    20,480       7.00     1.00           1.00"])

    def test_without_pytorch_there_is_no_ratio(self):
        line = compare_offload.table({"ferry": {"step_s": 0.2, "device_bytes": 2e9}}, 8192).splitlines()[1]
        self.assertEqual(line.split(), ["ferry", "200.0", "40,960", "2.00", "-", "-"])

    def test_a_peers_speed_is_that_of_the_bytes_of_its_format(self):
        row = bench_adamw_peers.peer_row("deepspeed bf16, f32 moments", 10**9, 14, 0.11)
        self.assertEqual((row["bytes"], round(row["gb_s"]), round(row["ms_per_billion"])), (22, 200, 110))
        self.assertEqual(bench_adamw_peers.table({"ferry f32": row}).splitlines(), [
            "AdamW      bytes per parameter  ms per billion   GB/s",
            "ferry f32                   22           110.0  200.0"])

    def test_models_have_the_size_of_their_name(self):
        for name, size, matrices in (("llama-3.2-1b", 1235814400, 1), ("llama-3.1-8b", 8030261248, 2)):
            fields = compare_offload.model_fields(name)
            self.assertEqual(fields["tie_word_embeddings"], matrices == 1)
            resident = (matrices * fields["vocab_size"] + 1) * fields["hidden_size"]
            self.assertEqual(compare_offload.n_layer_parameters(fields) + resident, size)


class Flags(unittest.TestCase):
    def command_of(self, *flags):
        """What ferry is called with, from a program that stands in for it."""
        with tempfile.TemporaryDirectory() as folder:
            program, called = Path(folder) / "ferry", Path(folder) / "called"
            program.write_text(f"#!{sys.executable}\nimport json, pathlib, sys\n"
                               f"pathlib.Path({str(called)!r}).write_text(json.dumps(sys.argv[1:]))\n"
                               f"print({STEP_OUTPUT!r})\n", encoding="utf-8")
            program.chmod(0o755)
            args = type("", (), dict(ferry=program, model="llama-3.1-8b", batch=4, seq_len=128, steps=12))
            compare_offload.run_ferry_step(args, list(flags))
            return json.loads(called.read_text(encoding="utf-8"))

    def test_each_dash_pair_begins_a_run(self):
        self.assertEqual(bench_report.split_flags(["--batch", "4", "--", "--head", "logits", "--"]),
                         (["--batch", "4"], [["--head", "logits"], []]))

    def test_ferry_takes_the_config_of_the_model_unless_another_is_named(self):
        extents = ["--batch-size", "4", "--seq-len", "128", "--steps", "12", "--untimed-steps", "3"]
        config = "configs/llama3.1-8b.toml"
        self.assertEqual(self.command_of(), ["bench", "step", config, *extents])
        self.assertEqual(self.command_of("--head", "logits"), ["bench", "step", config, "--head", "logits", *extents])
        self.assertEqual(self.command_of("my.toml"), ["bench", "step", "my.toml", *extents])
        self.assertEqual(self.command_of("--model=tiny"), ["bench", "step", "--model=tiny", *extents])

    def refused(self, script, *flags):
        done = subprocess.run([sys.executable, SCRIPTS / script, *flags], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        return done.stderr

    def test_a_python_without_the_packages_is_refused_in_one_line(self):
        program = ["--ferry", sys.executable]
        scripts = {"compare_offload.py": program, "compare_with_pytorch.py": program, "check_export.py": ["ferry"],
                   "bench_adamw_peers.py": [*program, "--params", str(2**23)]}
        for script, flags in scripts.items():
            bare = [sys.executable, "-E", "-S"]  # the standard library alone
            done = subprocess.run([*bare, SCRIPTS / script, *flags], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1, script)
            self.assertRegex(done.stderr, r"\Aerror: this Python lacks torch\b.*: install what is missing, .*\n\Z")

    def test_what_cannot_run_is_refused(self):
        missing = self.refused("compare_offload.py", "--ferry", "no_such_program")
        self.assertIn("no_such_program is not a program: build it with", missing)
        self.assertIn("--steps is 0, expected 1 or more", self.refused("compare_offload.py", "--steps", "0"))
        needed = self.refused("bench_adamw_peers.py", "--params", str(10**15))
        self.assertRegex(needed, r"needs 19999999\.9 GB of host memory, [\d.]+ are available: lower --params")


@unittest.skipUnless(importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"),
                     "needs torch and transformers")
class WithPyTorch(unittest.TestCase):
    def test_offloading_leaves_the_losses_of_pytorch_as_they_are(self):
        done = subprocess.run([sys.executable, SCRIPTS / "compare_offload.py", "--check", "--no-compile"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
