// SPDX-License-Identifier: Apache-2.0
// The CPU backend under a race detector: an access to memory that nothing orders after an earlier one fails, whatever
// the timing of this run is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace ferry {

/// The options behind "trace:cpu", each after a comma: "trace:cpu,delay=3,slow=copies".
struct TraceOptions {
  /// drop_wait=N: the N-th wait, from 0, still blocks but orders nothing, so that whoever needs it is found out. Waits
  /// are what TraceReport::waits lists, counted in the order of the calls.
  std::optional<std::int64_t> drop_wait;
  /// delay=SEED: ops and copies pause at random before they run, 0 to 400 us and a few of them 2 ms, by (seed, index).
  std::optional<std::uint64_t> delay;
  /// slow=copies: every copy pauses 1 ms before it runs.
  bool slow_copies = false;
};

/// Reads the name of a backend that begins with "trace:". Throws Error{kConfig} for anything but trace:cpu and its
/// options.
TraceOptions parse_trace_options(std::string_view name);

/// Traces `cpu`, a CPU backend with worker streams, which runs the work.
///
/// Order comes from: the program of a thread; the queue of a stream; a thread to the work and the records that it
/// enqueues; record to wait (of the last record at the time of the call); sync(event), sync(stream) and a query that is
/// true to the calling thread; publish(key) to a later observe(key). The start and the end of a thread order nothing by
/// themselves, nor does freeing memory, or destroying an event or a stream.
///
/// Accesses are the tensors of ops (a strided one from its first to its last byte), scratch (as a write, all that is
/// given), both sides of copies, and host_access. Two that overlap, at least one of them a write, must be ordered, and
/// each must lie in memory of this backend. The call that finds a fault throws Error{kDevice} and enqueues nothing;
/// every later call throws the same, except publish, observe and elapsed_ms. Labels of host_access are copied.
///
/// Calls may come from any threads, as backend.h says. Memory grows by about 100 bytes with each wait.
std::unique_ptr<Backend> create_trace_backend(std::unique_ptr<Backend> cpu, const TraceOptions& options);

/// One call of wait(stream, event) or sync(event): the two that a program can forget.
struct TraceWait {
  std::string waiter;       // "stream compute", "host thread 0"
  std::string recorder;     // "stream h2d"
  std::string text;         // "wait 4: stream compute, after op 2, matmul, waits for stream h2d, after copy 3, ..."
  bool adds_order = false;  // false: all that the event stands for was known already, so the wait is redundant here
  bool dropped = false;
};

struct TraceReport {
  std::int64_t n_ops = 0;
  std::int64_t n_copies = 0;
  std::uint64_t h2d_bytes = 0;
  std::uint64_t d2h_bytes = 0;
  std::vector<TraceWait> waits;
};

/// What a trace backend has seen so far. Any thread, also after a failure. Asserts that `backend` is one.
TraceReport trace_report(Backend& backend);

}  // namespace ferry
