// SPDX-License-Identifier: Apache-2.0
// A backend that forwards every call, for tests that change a few of them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "backend/backend.h"

namespace ferry::test {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  Backend& inner() { return *inner_; }

  const Capabilities& capabilities() const override { return inner_->capabilities(); }
  std::unique_ptr<Stream> create_stream(const std::string& name) override { return inner_->create_stream(name); }
  std::unique_ptr<Event> create_event() override { return inner_->create_event(); }
  void record(EventRef event, StreamRef stream) override { inner_->record(event, stream); }
  void wait(StreamRef stream, EventRef event) override { inner_->wait(stream, event); }
  bool query(EventRef event) override { return inner_->query(event); }
  void sync(EventRef event) override { inner_->sync(event); }
  void sync(StreamRef stream) override { inner_->sync(stream); }
  double elapsed_ms(EventRef begin, EventRef end) override { return inner_->elapsed_ms(begin, end); }
  void copy(StreamRef stream, void* destination, const void* source, std::size_t size_bytes,
            CopyDirection direction) override {
    inner_->copy(stream, destination, source, size_bytes, direction);
  }
  std::size_t scratch_bytes(const Op& op) const override { return inner_->scratch_bytes(op); }
  std::string what_serves(const Op& op) const override { return inner_->what_serves(op); }
  void enqueue(StreamRef stream, const Op& op, Scratch scratch) override { inner_->enqueue(stream, op, scratch); }
  void host_access(Access how, const void* data, std::size_t size_bytes, const char* label) override {
    inner_->host_access(how, data, size_bytes, label);
  }
  void publish(const void* key) override { inner_->publish(key); }
  void observe(const void* key) override { inner_->observe(key); }

 protected:
  void* allocate(Buffer::Place place, std::size_t size_bytes) override {
    Buffer buffer = place == Buffer::Place::kDevice ? inner_->allocate_device(size_bytes, "test")
                                                    : inner_->allocate_host(size_bytes, "test");
    void* data = buffer.data();
    const std::scoped_lock lock(mutex_);
    buffers_.emplace(data, std::move(buffer));
    return data;
  }
  void free(Buffer::Place, void* data, std::size_t) noexcept override {
    const std::scoped_lock lock(mutex_);
    buffers_.erase(data);
  }

 private:
  std::unique_ptr<Backend> inner_;
  std::mutex mutex_;
  std::map<void*, Buffer> buffers_;  // guarded by mutex_
};

}  // namespace ferry::test
