// SPDX-License-Identifier: Apache-2.0
// The progress line: a carriage return, the text, and "erase to the end of the line" in one write, so nothing flickers.
#include "train/progress.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <vector>

#include "core/error.h"
#include "core/human_units.h"
#include "core/log.h"

namespace ferry {
namespace {

constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr int kUnlimited = 1000;
constexpr const char* kEraseLine = "\r\x1b[K";

std::atomic<Progress*> live_progress{nullptr};

int terminal_width(std::FILE* out) {
  winsize size{};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

/// The last column stays free: a terminal that wraps there would start a second line.
int free_columns(std::FILE* out) { return terminal_width(out) - 1; }

/// A part of the line; parts of the highest rank are left out first.
struct Part {
  int rank;
  std::string text;
};

constexpr int kLastRank = 7;

std::vector<Part> parts_of(const ProgressState& state) {
  const int digits = static_cast<int>(std::to_string(state.steps).size());
  std::vector<Part> parts;
  parts.push_back({0, fmt::format("step {:>{}}/{}", state.step, digits, state.steps)});
  parts.push_back({1, fmt::format("loss {:.4f}", state.loss)});
  if (state.grad_norm) parts.push_back({5, fmt::format("grad norm {:.3g}", *state.grad_norm)});
  parts.push_back({4, fmt::format("lr {:.2e}", state.lr)});
  if (state.tokens_per_s) parts.push_back({2, human_count(*state.tokens_per_s) + " tok/s"});
  parts.push_back({6, "mem " + human_bytes(state.device_bytes)});
  parts.push_back({kLastRank, "host " + human_bytes(state.host_bytes)});
  if (state.eta_s) parts.push_back({3, "eta " + human_duration(*state.eta_s)});
  return parts;
}

std::string join(const std::vector<Part>& parts, int max_rank) {
  std::string line;
  for (const Part& part : parts) {
    if (part.rank > max_rank) continue;
    if (!line.empty()) line += "  ";
    line += part.text;
  }
  return line;
}

}  // namespace

std::string progress_line(const ProgressState& state, int width) {
  const std::vector<Part> parts = parts_of(state);
  const auto limit = static_cast<std::size_t>(width > 0 ? width : 0);
  for (int max_rank = kLastRank; max_rank > 0; --max_rank) {
    std::string line = join(parts, max_rank);
    if (line.size() <= limit) return line;
  }
  return join(parts, 0).substr(0, limit);
}

Progress::Mode Progress::mode_for(std::FILE* out, bool quiet) {
  if (quiet) return Mode::kQuiet;
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  return isatty(fileno(out)) != 0 && !dumb ? Mode::kLive : Mode::kPlain;
}

Progress::Progress(std::FILE* out, Mode mode) : out_(out), mode_(mode) {
  if (mode_ != Mode::kLive) return;
  FERRY_ASSERT(live_progress.exchange(this) == nullptr);
  log::set_before_message([] {
    if (Progress* progress = live_progress.load()) progress->clear();
  });
}

Progress::~Progress() {
  if (mode_ != Mode::kLive) return;
  log::set_before_message(nullptr);
  clear();
  live_progress = nullptr;
}

void Progress::update(const ProgressState& state) {
  if (mode_ != Mode::kLive) return;
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (drawn_ && now - last_draw_ < kRedrawInterval && state.step < state.steps) return;
  last_draw_ = now;
  draw(progress_line(state, free_columns(out_)));
}

void Progress::show(std::string_view text) {
  if (mode_ != Mode::kLive) return;
  const std::lock_guard lock(mutex_);
  last_draw_ = {};
  draw(std::string(text.substr(0, static_cast<std::size_t>(free_columns(out_)))));
}

void Progress::log(const ProgressState& state) {
  const std::string line = progress_line(state, kUnlimited);
  log::to_file(line);
  if (mode_ != Mode::kPlain) return;
  const std::lock_guard lock(mutex_);
  fmt::print(out_, "{}\n", line);
  std::fflush(out_);
}

void Progress::print(std::string_view text) {
  log::to_file(text);
  if (mode_ == Mode::kQuiet) return;
  const std::lock_guard lock(mutex_);
  clear_locked();
  fmt::print(out_, "{}\n", text);
  std::fflush(out_);
}

void Progress::clear() {
  const std::lock_guard lock(mutex_);
  clear_locked();
}

void Progress::draw(const std::string& line) {
  fmt::print(out_, "\r{}\x1b[K", line);
  std::fflush(out_);
  drawn_ = true;
}

void Progress::clear_locked() {
  if (!drawn_) return;
  std::fputs(kEraseLine, out_);
  std::fflush(out_);
  drawn_ = false;
}

}  // namespace ferry
