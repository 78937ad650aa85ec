// SPDX-License-Identifier: Apache-2.0
// `ferry generate`: continues a text with a saved byte-level model, byte by byte to stdout.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "backend/backend.h"
#include "cli/commands.h"
#include "cli/run_folder.h"
#include "cli/run_setup.h"
#include "core/error.h"
#include "core/log.h"
#include "io/printable.h"
#include "offload/engine.h"
#include "train/sampler.h"
#include "train/weights_io.h"

namespace ferry {
namespace {

/// Writes bytes to stdout as soon as they form characters. A terminal gets no control characters from the model.
class TextStream {
 public:
  TextStream() : is_terminal_(isatty(STDOUT_FILENO) != 0) {}

  void write(char byte) {
    pending_.push_back(byte);
    if (pending_.size() >= character_bytes(pending_.front())) flush();
  }

  void flush() {
    const std::string text = is_terminal_ ? printable_text(pending_) : pending_;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    pending_.clear();
  }

 private:
  /// Length of the UTF-8 sequence that `first` begins; 1 for a stray byte.
  static std::size_t character_bytes(char first) {
    const auto bits = static_cast<unsigned char>(first);
    if (bits >= 0xf0) return 4;
    if (bits >= 0xe0) return 3;
    return bits >= 0xc0 ? 2 : 1;
  }

  bool is_terminal_;
  std::string pending_;
};

}  // namespace

int run_generate(const CommandLine& line) {
  log::set_level(log::Level::kWarn);  // the text alone
  const RunConfig& config = line.config;
  FERRY_CHECK(!config.model.empty(), kConfig,
              "no model to generate from: give a folder, as in `ferry generate FOLDER --prompt \"Once upon\"`");
  const std::filesystem::path folder = find_model_folder(config.model);
  const ModelConfig model = load_model_config(folder);
  require_byte_vocabulary(model, "ferry generate");

  const std::unique_ptr<Backend> backend = create_backend(config.backend, backend_options(config));
  EngineOptions options;
  options.dtype = config.dtype;
  options.training = false;
  options.threads = static_cast<int>(config.threads);
  options.seq_len = std::min(model.max_position_embeddings, std::ssize(config.prompt) + config.max_tokens);
  Engine engine(*backend, model, options);
  load_weights(folder, model, engine);

  TextStream out;
  for (const char byte : config.prompt) out.write(byte);
  generate_bytes([&](std::span<const std::int32_t> ids) { return engine.next_logits(ids); },
                 {.prompt = config.prompt,
                  .n_tokens = config.max_tokens,
                  .context = options.seq_len,
                  .temperature = config.temperature,
                  .seed = static_cast<std::uint64_t>(config.seed)},
                 [&](char byte) {
                   out.write(byte);
                   return std::ferror(stdout) == 0;
                 });
  out.write('\n');
  out.flush();
  FERRY_CHECK(std::ferror(stdout) == 0, kIo, "writing the text to stdout failed: is the disk full?");
  return 0;
}

}  // namespace ferry
