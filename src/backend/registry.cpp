// SPDX-License-Identifier: Apache-2.0
// Names of backends. Another backend is another line of kBackends.
#include <string>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_factory.h"
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

struct Entry {
  const char* name;
  Factory create;
};

constexpr Entry kBackends[] = {
    {"auto", create_auto},
    {"cpu", create_cpu<cpu::Launch::kWorker>},
    {"cpu:sync", create_cpu<cpu::Launch::kInline>},
    {"cuda", create_cuda_backend},
};

}  // namespace

std::unique_ptr<Backend> create_backend(const std::string& name, const BackendOptions& options) {
  std::string known;
  for (const Entry& entry : kBackends) {
    if (name == entry.name) return entry.create(options);
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  detail::throw_error(ErrorKind::kConfig, fmt::format("backend is '{}': expected one of {}", name, known));
}

}  // namespace ferry
