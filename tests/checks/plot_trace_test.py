# SPDX-License-Identifier: Apache-2.0
"""scripts/plot_trace.py draws each span of a trace on its lane."""
import json
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "plot_trace.py"
LANES = ["h2d", "compute", "d2h", "optimizer", "launcher"]


def trace_of(spans):
    events = [{"name": "thread_name", "ph": "M", "tid": i, "args": {"name": lane}} for i, lane in enumerate(LANES)]
    for lane, name, step, begin, duration in spans:
        events.append({"name": name, "ph": "X", "tid": LANES.index(lane), "ts": begin, "dur": duration,
                       "args": {"step": step}})
    return json.dumps({"traceEvents": events})


class PlotTrace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def draw(self, spans, *flags):
        (self.folder / "trace.json").write_text(trace_of(spans), encoding="utf-8")
        command = [sys.executable, str(SCRIPT), "trace.json", "step.svg", *flags]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)

    def titles(self):
        root = xml.parse(self.folder / "step.svg").getroot()
        return [node.text for node in root.iter("{http://www.w3.org/2000/svg}title") if node.text.startswith("step")]

    def test_every_span_is_drawn_with_its_name_and_time(self):
        result = self.draw([("h2d", "weights layer 3", 2, 0, 1000), ("compute", "forward layer 3", 2, 1000, 2500)])
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(self.titles(), ["step 2: weights layer 3, 1.000 ms", "step 2: forward layer 3, 2.500 ms"])

    def test_a_step_is_drawn_with_what_overlaps_it(self):
        spans = [("compute", "backward layer 0", 1, 0, 10), ("optimizer", "AdamW layer 0", 1, 10, 20),
                 ("h2d", "weights layer 0", 2, 25, 10), ("compute", "forward layer 0", 3, 90, 10)]
        self.assertEqual(self.draw(spans, "--step", "2").returncode, 0)
        self.assertEqual(self.titles(), ["step 2: weights layer 0, 0.010 ms", "step 1: AdamW layer 0, 0.020 ms"])

    def test_without_a_step_one_from_the_middle_is_drawn(self):
        spans = [("compute", "loss", step, 20 * step, 10) for step in (25, 26, 27)]
        spans.append(("launcher", "launch step 28", 28, 480, 10))
        self.assertEqual(self.draw(spans).returncode, 0)
        self.assertEqual(self.titles(), ["step 26: loss, 0.010 ms"])

    def test_a_trace_without_steps_is_refused(self):
        result = self.draw([])
        self.assertEqual((result.returncode, result.stderr), (1, "plot_trace.py: no step in the trace\n"))

    def test_a_step_that_is_not_there_is_refused(self):
        spans = [("compute", "loss", 4, 20, 10), ("compute", "loss", 3, 0, 10), ("launcher", "wait", 5, 10, 10)]
        result = self.draw(spans, "--step", "5")
        message = "plot_trace.py: no step 5 in the trace, which holds 3, 4\n"
        self.assertEqual((result.returncode, result.stderr), (1, message))


if __name__ == "__main__":
    unittest.main()
