// SPDX-License-Identifier: Apache-2.0
// Names of backends. Another backend is another line of kBackends.
#include <string>
#include <string_view>
#include <utility>

#include "backend/backend.h"
#include "backend/check_backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_factory.h"
#include "backend/cuda/scratch_bound.h"
#include "backend/trace_backend.h"
#include "core/error.h"
#include "core/log.h"
#include "core/simd.h"

namespace ferry {
namespace {

using Factory = std::unique_ptr<Backend> (*)(const BackendOptions&);

template <cpu::Launch kLaunch>
std::unique_ptr<Backend> create_cpu(const BackendOptions& options) {
  return cpu::create_cpu_backend(cpu::op_table(simd_level()), kLaunch, options);
}

std::unique_ptr<Backend> create_auto(const BackendOptions& options) {
  try {
    return create_cuda_backend(options);
  } catch (const Error& failure) {
    if (failure.kind() != ErrorKind::kDevice) throw;
    log::info("backend auto takes the CPU: {}", failure.what());
  }
  return create_cpu<cpu::Launch::kWorker>(options);
}

constexpr std::string_view kCheckPrefix = "check:";
constexpr std::string_view kTracePrefix = "trace:";

std::unique_ptr<Backend> create_trace(const std::string& name, const BackendOptions& options) {
  const TraceOptions trace_options = parse_trace_options(name);
  return create_trace_backend(create_cpu<cpu::Launch::kWorker>(options), trace_options);
}

std::unique_ptr<Backend> create_plain_trace(const BackendOptions& options) {
  return create_trace("trace:cpu", options);
}

struct Entry {
  const char* name;
  Factory create;
};

constexpr Entry kBackends[] = {
    {"auto", create_auto},
    {"cpu", create_cpu<cpu::Launch::kWorker>},
    {"cpu:sync", create_cpu<cpu::Launch::kInline>},
    {"cuda", create_cuda_backend},
    {"trace:cpu", create_plain_trace},
};

std::unique_ptr<Backend> create_plain(const std::string& name, const BackendOptions& options) {
  std::string known;
  for (const Entry& entry : kBackends) {
    if (name == entry.name) return entry.create(options);
    known += std::string(entry.name) + ", ";
  }
  detail::throw_error(ErrorKind::kConfig,
                      fmt::format("backend is '{}': expected one of {}or check:A,B with two of these", name, known));
}

/// `name` starts with kCheckPrefix.
std::unique_ptr<Backend> create_check(const std::string& name, const BackendOptions& options) {
  const std::string pair = name.substr(kCheckPrefix.size());
  FERRY_CHECK(pair.find(kCheckPrefix) == std::string::npos, kConfig,
              "backend is '{}': check compares two plain backends, not another check: expected check:A,B", name);
  const std::size_t comma = pair.find(',');
  FERRY_CHECK(comma != std::string::npos, kConfig,
              "backend is '{}': check compares two backends: expected check:A,B, such as check:cuda,cpu", name);
  const std::string subject = pair.substr(0, comma), reference = pair.substr(comma + 1);
  auto subject_backend = create_plain(subject, options);
  return create_check_backend({subject, std::move(subject_backend)}, {reference, create_plain(reference, options)});
}

}  // namespace

std::unique_ptr<Backend> create_backend(const std::string& name, const BackendOptions& options) {
  if (name.starts_with(kCheckPrefix)) return create_check(name, options);
  if (name.starts_with(kTracePrefix)) return create_trace(name, options);
  return create_plain(name, options);
}

std::unique_ptr<ScratchSizes> create_scratch_bound(const std::string& name, const BackendOptions& options) {
  if (name != "cuda" || cuda_device_count() > 0) return nullptr;
  return std::make_unique<cuda::ScratchBound>(options.attention);
}

}  // namespace ferry
