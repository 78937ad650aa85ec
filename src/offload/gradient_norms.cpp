// SPDX-License-Identifier: Apache-2.0
// Runs leave out padding and frozen parameters.
#include "offload/gradient_norms.h"

#include <utility>

#include "core/error.h"

namespace ferry {
namespace {

std::string name_of(const ParameterTable& parameters, const Segment& segment) {
  const ParameterInfo& first = parameters.parameters()[parameters.first_parameter_at(segment.offset)];
  return segment.kind == Segment::Kind::kLayer ? fmt::format("the gradient of layer {}", segment.index)
                                               : "the gradient of " + first.name;
}

}  // namespace

std::vector<NormRun> norm_runs(const ParameterTable& parameters, const Segment& segment) {
  std::vector<NormRun> runs;
  for (const ParameterRange& range : parameter_ranges(parameters, segment.offset, segment.elems)) {
    if (!runs.empty() && runs.back().offset + runs.back().elems == range.offset) {
      runs.back().elems += range.elems;
    } else {
      runs.push_back({range.offset, range.elems});
    }
  }
  return runs;
}

std::int64_t GradientNorms::count(const ParameterTable& parameters) {
  std::int64_t count = 0;
  for (const Segment& segment : parameters.segments()) {
    count += static_cast<std::int64_t>(norm_runs(parameters, segment).size());
  }
  return count;
}

GradientNorms::GradientNorms(Streams& streams, const ParameterTable& parameters, OptimizerQueue& queue, float* device,
                             float* host)
    : streams_(streams), parameters_(parameters), queue_(queue), device_(device), host_(host) {
  for (const Segment& segment : parameters.segments()) {
    Part part{.runs = norm_runs(parameters, segment), .first = count_, .arrived = streams.backend.create_event()};
    count_ += static_cast<std::int64_t>(part.runs.size());
    parts_.push_back(std::move(part));
  }
}

void GradientNorms::begin_step(std::int64_t step) {
  step_ = step;
  sent_before_ = std::exchange(last_sent_, nullptr);
}

void GradientNorms::take(const OpContext& context, int segment, const TensorView& gradient, const TensorView& skip) {
  if (EventRef sent = std::exchange(sent_before_, nullptr)) streams_.backend.wait(context.stream, sent);
  const Segment& info = parameters_.segment(segment);
  const Part& part = parts_[static_cast<std::size_t>(segment)];
  for (std::size_t i = 0; i < part.runs.size(); ++i) {
    const auto& [offset, elems] = part.runs[i];
    SumOfSquares op{.x = gradient.columns(offset - info.offset, elems),
                    .skip = {},
                    .y = TensorView(device_ + part.first + static_cast<std::int64_t>(i), DType::kF32, {1})};
    if (skip && info.n_rows > 0) {
      op.x = op.x.reshape({info.n_rows, elems / info.n_rows});
      op.skip = skip.rows(info.first_row, info.n_rows);
    }
    context.run(op);
  }
}

void GradientNorms::send(int segment) {
  const Part& part = parts_[static_cast<std::size_t>(segment)];
  if (part.runs.empty()) return;
  const std::span<float> values(host_ + step_ % 2 * count_ + part.first, part.runs.size());
  streams_.to_host(values.data(), device_ + part.first, values.size_bytes(), {.what = "norms", .segment = segment});
  streams_.backend.record(part.arrived.get(), streams_.d2h.get());
  last_sent_ = part.arrived.get();
  queue_.submit_norms(name_of(parameters_, parameters_.segment(segment)), values, part.arrived.get());
}

}  // namespace ferry
