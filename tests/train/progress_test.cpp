// SPDX-License-Identifier: Apache-2.0
// Tests of train/progress.h.
#include "train/progress.h"

#include <memory>

#include "catch.h"
#include "core/log.h"

using namespace ferry;

namespace {

ProgressState state(std::int64_t step = 120) {
  return {.step = step,
          .steps = 1000,
          .loss = 2.34567,
          .grad_norm = 1.23456,
          .lr = 3e-3,
          .tokens_per_s = 31234,
          .device_bytes = 4'700'000,
          .host_bytes = 60'000'000,
          .eta_s = 62};
}

/// A file that remembers what was drawn.
class Screen {
 public:
  std::FILE* file() { return file_.get(); }
  std::string text() {
    std::string content(static_cast<std::size_t>(std::ftell(file())), '\0');
    std::rewind(file());
    content.resize(std::fread(content.data(), 1, content.size(), file()));
    return content;
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_{std::tmpfile()};
};

}  // namespace

TEST_CASE("the line tells step, loss, gradient norm, lr, speed, memory and time left") {
  CHECK(progress_line(state(), 200) ==
        "step  120/1000  loss 2.3457  grad norm 1.23  lr 3.00e-03  31.2k tok/s  mem 4.5 MiB  host 57.2 MiB  eta 1m02s");
}

TEST_CASE("the line never exceeds the width and keeps step and loss longest") {
  for (int width = 0; width < 120; ++width) {
    const std::string line = progress_line(state(), width);
    CHECK(line.size() <= static_cast<std::size_t>(width));
    if (width >= 28) CHECK(line.find("loss 2.3457") != std::string::npos);
  }
  CHECK(progress_line(state(), 79).find("eta") != std::string::npos);
}

TEST_CASE("a narrow line drops memory first, then the gradient's norm, then lr") {
  const std::string full = progress_line(state(), 200);
  const int width = static_cast<int>(full.size());
  const auto has = [](const std::string& line, const char* part) { return line.find(part) != std::string::npos; };
  CHECK_FALSE(has(progress_line(state(), width - 1), "host"));
  CHECK(has(progress_line(state(), width - 1), "norm"));
  const std::string narrow = progress_line(state(), 66);
  CHECK_FALSE(has(narrow, "norm"));
  CHECK(has(narrow, "lr"));
  CHECK(has(narrow, "eta"));
}

TEST_CASE("what is not known yet is left out") {
  ProgressState first = state(1);
  first.tokens_per_s.reset();
  first.eta_s.reset();
  first.grad_norm.reset();
  const std::string line = progress_line(first, 200);
  CHECK(line.find("tok/s") == std::string::npos);
  CHECK(line.find("eta") == std::string::npos);
  CHECK(line.find("norm") == std::string::npos);
}

TEST_CASE("a file gets plain lines without control characters") {
  Screen screen;
  CHECK(Progress::mode_for(screen.file(), false) == Progress::Mode::kPlain);
  {
    Progress progress(screen.file(), Progress::Mode::kPlain);
    progress.update(state());
    progress.log(state());
    progress.print("a note");
  }
  CHECK(screen.text() == progress_line(state(), 200) + "\na note\n");
}

TEST_CASE("a live line is redrawn in place and cleared before other text") {
  Screen screen;
  {
    Progress progress(screen.file(), Progress::Mode::kLive);
    progress.update(state());
    progress.log(state());
    progress.print("a note");
    progress.clear();
  }
  const std::string line = "\r" + progress_line(state(), 79) + "\x1b[K";
  CHECK(screen.text() == line + "\r\x1b[Ka note\n");
}

TEST_CASE("redraws are rationed, but the last step is always shown") {
  Screen screen;
  {
    Progress progress(screen.file(), Progress::Mode::kLive);
    for (std::int64_t step = 1; step <= 1000; ++step) progress.update(state(step));
  }
  const std::string text = screen.text();
  CHECK(text.find("1000/1000") != std::string::npos);
  CHECK(std::count(text.begin(), text.end(), '\r') < 100);
}

TEST_CASE("a log message clears the live line first") {
  Screen screen;
  {
    Progress progress(screen.file(), Progress::Mode::kLive);
    progress.update(state());
    log::warn("a warning in the middle of a progress line");
    CHECK(screen.text().ends_with("\x1b[K\r\x1b[K"));
  }
}

TEST_CASE("quiet prints nothing") {
  Screen screen;
  {
    Progress progress(screen.file(), Progress::mode_for(screen.file(), true));
    progress.update(state());
    progress.log(state());
    progress.print("a note");
  }
  CHECK(screen.text().empty());
}
