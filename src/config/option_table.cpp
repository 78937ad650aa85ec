// SPDX-License-Identifier: Apache-2.0
// The options, one entry each.
#include "config/option_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "config/nearest.h"
#include "config/text_file.h"
#include "core/error.h"

namespace ferry {
namespace {

using C = RunConfig;
using Form = TextOption::Form;

constexpr unsigned kTrain = static_cast<unsigned>(Command::kTrain);
constexpr unsigned kGenerate = static_cast<unsigned>(Command::kGenerate);
constexpr unsigned kBench = static_cast<unsigned>(Command::kBench);
constexpr unsigned kPlan = static_cast<unsigned>(Command::kPlan);
constexpr unsigned kEval = static_cast<unsigned>(Command::kEval);
constexpr unsigned kExport = static_cast<unsigned>(Command::kExport);
constexpr unsigned kInspect = static_cast<unsigned>(Command::kInspect);
constexpr unsigned kSteps = kTrain | kBench | kPlan;  // of a training step
constexpr unsigned kPasses = kSteps | kEval;          // of a forward pass
constexpr bool kShort = false;
constexpr bool kAdvanced = true;

constexpr std::int64_t kMaxInt = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxSteps = 1'000'000'000;
constexpr std::int64_t kMaxTokens = 1'000'000'000'000;
constexpr std::int64_t kMinAdamwParams = std::int64_t{8} << 20;              // a piece
constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max();  // positions are i32

template <auto kField>
EnumOption enum_option(std::vector<const char*> choices) {
  using E = std::remove_reference_t<decltype(std::declval<C&>().*kField)>;
  return {[](const C& config) { return static_cast<int>(config.*kField); },
          [](C& config, int value) { config.*kField = static_cast<E>(value); }, std::move(choices)};
}

std::vector<Option> model_options() {
  return {
      {"model", "model", TextOption{&C::model, Form::kName, {}},
       "Shape of the model: a preset, a Hugging Face folder or a config.json; generate and eval: the folder of a "
       "trained model",
       kShort, kTrain | kGenerate | kBench | kPlan | kEval},
      {"init_from", "model", TextOption{&C::init_from, Form::kPath, {}},
       "Hugging Face folder with the first weights; without it they are random", kShort, kTrain | kPlan},
      {"seed", "model", IntOption{&C::seed, 0, kMaxInt}, "Seed of random weights and of sampled text", kShort,
       kTrain | kGenerate | kBench},
      {"dtype", "model", enum_option<&C::dtype>({"f32", "bf16"}),
       "Storage type of weights and activations; generate, eval and export without it: that of the stored weights",
       kShort, kTrain | kGenerate | kBench | kPlan | kEval | kExport},
  };
}

std::vector<Option> data_options() {
  return {
      {"train_data", "data", ListOption{&C::train_data, "path"},
       "Training files, read one after another; a FILE.mask beside one has a byte for each token, 0 where it is no "
       "target",
       kShort, kTrain},
      {"val_data", "data", ListOption{&C::val_data, "path"}, "Validation files, with masks as train_data", kShort,
       kTrain | kEval},
      {"data_format", "data", enum_option<&C::data_format>({"auto", "shard", "u16", "u32", "bytes"}),
       "Format of all data files; auto reads .txt files as bytes (eval: with the model's tokenizer where it has one) "
       "and "
       "others as token shards",
       kShort, kTrain | kEval},
      {"seq_len", "data", IntOption{&C::seq_len, 1, kMaxRows}, "Tokens of a sequence", kShort, kPasses},
      {"batch_size", "data", IntOption{&C::batch_size, 1, kMaxRows}, "Sequences that go through a layer together",
       kShort, kPasses},
      {"accumulate", "data", IntOption{&C::accumulate, 1, kMaxRows},
       "Groups of batch_size sequences in a step; each layer visits the device once for all of them", kShort, kSteps},
      {"order", "data", enum_option<&C::order>({"sequential", "shuffled"}),
       "Order of the sequences; shuffled is a new permutation in each epoch", kShort, kTrain},
      {"data_seed", "data", IntOption{&C::data_seed, 0, kMaxInt}, "Seed of the shuffled order", kShort, kTrain},
  };
}

std::vector<Option> optimizer_options() {
  return {
      {"lr", "optimizer", RealOption{&C::lr, 0, 10, true}, "Highest learning rate", kShort, kTrain},
      {"schedule", "optimizer", enum_option<&C::schedule>({"constant", "linear", "cosine", "wsd"}),
       "How the learning rate falls after the warmup; wsd stays and falls linearly at the end", kShort, kTrain},
      {"warmup_steps", "optimizer", IntOption{&C::warmup_steps, 0, kMaxSteps}, "Steps of linear warmup", kShort,
       kTrain},
      {"decay_steps", "optimizer", IntOption{&C::decay_steps, 0, kMaxSteps},
       "Steps of the decay; 0 = all after the warmup (wsd needs a number)", kShort, kTrain},
      {"min_lr_ratio", "optimizer", RealOption{&C::min_lr_ratio, 0, 1},
       "Learning rate of the last step, relative to lr", kShort, kTrain},
      {"beta1", "optimizer", RealOption{&C::beta1, 0, 1, false, true}, "AdamW's decay of the first moment", kShort,
       kTrain},
      {"beta2", "optimizer", RealOption{&C::beta2, 0, 1, false, true}, "AdamW's decay of the second moment", kShort,
       kTrain},
      {"eps", "optimizer", RealOption{&C::eps, 0, 1, true}, "AdamW's epsilon", kShort, kTrain},
      {"weight_decay", "optimizer", RealOption{&C::weight_decay, 0, 100}, "AdamW's weight decay; norms have none",
       kShort, kTrain},
      {"decay_embeddings", "optimizer", BoolOption{&C::decay_embeddings}, "Decay the embeddings too", kShort, kTrain},
      {"grad_clip", "optimizer", RealOption{&C::grad_clip, 0, 1e9},
       "Largest global norm of the gradients, larger ones are scaled down; 0 = none. Updates then wait for the norm",
       kShort, kSteps},
      {"freeze", "optimizer", ListOption{&C::freeze, "name pattern"},
       "Parameters that are not trained and cost no state: Hugging Face names, * stands for any text, as in "
       "model.layers.0.*; something must be left to train",
       kShort, kSteps},
      {"optimizer_state", "optimizer", enum_option<&C::optimizer_state>({"f32", "mixed", "bf16"}),
       "f32 keeps exact f32 weights and moments (12 bytes per parameter), mixed exact weights and bf16 moments (8), "
       "bf16 rounds all of them (6); dtype f32 has f32",
       kShort, kSteps},
      {"rounding", "optimizer", enum_option<&C::rounding>({"stochastic", "nearest"}),
       "How AdamW rounds to bf16 what optimizer_state keeps so: stochastic keeps updates that are smaller than half a "
       "step of bf16, on average; nearest is what PyTorch does",
       kShort, kSteps},
  };
}

std::vector<Option> offload_options() {
  return {
      {"offload", "offload", enum_option<&C::offload>({"all", "layers", "none"}),
       "all keeps weights, gradients and optimizer state in host memory, none keeps them on the device, layers keeps "
       "those of the embedding, the head and the final norm on the device",
       kShort, kPasses},
      {"gpu_memory", "offload", TextOption{&C::gpu_memory, Form::kSize, {"auto", "min"}},
       "Device memory that the plan may use: auto is what is free (on the CPU only generate keeps there what need not "
       "be), min as little as works",
       kShort, kPasses | kGenerate},
      {"host_memory", "offload", TextOption{&C::host_memory, Form::kSize, {"auto"}},
       "Host memory that the plan may use; auto is what is available", kShort, kPasses | kGenerate},
  };
}

std::vector<Option> run_options() {
  return {
      {"steps", "run", IntOption{&C::steps, 1, kMaxSteps}, "Length of the run in steps (give this or epochs)", kShort,
       kTrain | kBench},
      {"epochs", "run", IntOption{&C::epochs, 1, kMaxSteps}, "Length of the run in passes over the data", kShort,
       kTrain},
      {"output", "run", TextOption{&C::output, Form::kPath, {}}, "Folder for weights and metrics", kShort, kTrain},
      {"resume", "run", TextOption{&C::resume, Form::kPath, {"none", "auto"}},
       "Goes on to the bit: auto from the newest whole checkpoint in output, where there is one; a path from that "
       "checkpoint, or the newest of that run",
       kShort, kTrain},
      {"save_every", "run", IntOption{&C::save_every, 0, kMaxSteps},
       "Steps between two checkpoints, and one at the end; 0 = one when the run is ended early", kShort, kTrain},
      {"keep_last", "run", IntOption{&C::keep_last, 1, 1'000'000}, "Newest checkpoints that are kept", kShort, kTrain},
      {"log_every", "run", IntOption{&C::log_every, 1, kMaxSteps}, "Steps between two log lines", kShort, kTrain},
      {"eval_every", "run", IntOption{&C::eval_every, 0, kMaxSteps},
       "Steps between two evaluations on val_data; 0 = only at the end", kShort, kTrain},
      {"eval_tokens", "run", IntOption{&C::eval_tokens, 0, kMaxTokens}, "Tokens of one evaluation; 0 = all of val_data",
       kShort, kTrain | kEval},
      {"backend", "run",
       TextOption{&C::backend, Form::kChoice, {"auto", "cpu", "cpu:sync", "cuda", "trace:cpu"}, "check"},
       "What computes; auto is cuda where it works, else cpu; for debugging, cpu:sync runs each call at once, "
       "trace:cpu stops where no order keeps two streams or threads from using the same memory at once, and "
       "check:cuda,cpu compares every op of the first with the second",
       kShort, kTrain | kGenerate | kBench | kPlan | kEval},
      {"device", "run", IntOption{&C::device, 0, 1023},
       "GPU of the cuda backend, among those CUDA_VISIBLE_DEVICES shows", kShort,
       kTrain | kGenerate | kBench | kPlan | kEval},
      {"threads", "run", IntOption{&C::threads, 0, 4096},
       "CPU threads; 0 = all available (of eight cores or more, AdamW leaves two free)", kShort,
       kTrain | kGenerate | kBench | kEval},
      {"check_finite", "run", BoolOption{&C::check_finite},
       "Stop at a loss or gradient that is not finite (with grad_clip, skip the step)", kShort, kSteps},
      {"quiet", "run", BoolOption{&C::quiet}, "Print warnings and errors only", kShort, kTrain},
      {"log_file", "run", TextOption{&C::log_file, Form::kPath, {}},
       "File that gets every message too; none that the run reads or writes otherwise", kShort, kTrain},
      {"trace", "run", TextOption{&C::trace, Form::kPath, {}},
       "File that gets a timeline for Perfetto: of the 10 steps after the first; bench step: of 10 more steps; none "
       "that the run reads or writes otherwise",
       kShort, kTrain | kBench},
      {"sample_tokens", "run", IntOption{&C::sample_tokens, 0, 1'000'000},
       "Tokens of sample text after training, for a byte vocabulary", kShort, kTrain},
      {"sample_prompt", "run", TextOption{&C::sample_prompt, Form::kName, {}}, "What the sample text continues", kShort,
       kTrain},
  };
}

std::vector<Option> generate_options() {
  return {
      {"prompt", "generate", TextOption{&C::prompt, Form::kName, {}},
       "Text to continue; without it a new text begins, for bytes a new line", kShort, kGenerate},
      {"prompt_ids", "generate", TextOption{&C::prompt_ids, Form::kName, {}},
       "Token ids to continue, as 1,403,407, instead of a text; a model without a tokenizer answers in ids", kShort,
       kGenerate},
      {"max_tokens", "generate", IntOption{&C::max_tokens, 1, 1'000'000},
       "Tokens to generate, at most: a token that ends a text ends it earlier", kShort, kGenerate},
      {"temperature", "generate", RealOption{&C::temperature, 0, 100},
       "Of generated text, a sample after training included; 0 takes the likeliest token", kShort, kTrain | kGenerate},
      {"top_k", "generate", IntOption{&C::top_k, 0, kMaxRows}, "Draw from this many of the likeliest tokens; 0 = all",
       kShort, kTrain | kGenerate},
      {"top_p", "generate", RealOption{&C::top_p, 0, 1, true},
       "Draw from the fewest of the likeliest tokens that have this share of the probability, after top_k; 1 = all",
       kShort, kTrain | kGenerate},
  };
}

std::vector<Option> eval_options() {
  return {{"json", "eval", BoolOption{&C::json}, "Print one line of JSON in place of text", kShort, kEval}};
}

std::vector<Option> inspect_options() {
  return {
      {"all", "inspect", BoolOption{&C::all}, "List the tensors of every layer, not those of equal layers once", kShort,
       kInspect},
      {"checksums", "inspect", BoolOption{&C::checksums},
       "Read every byte: print the files' checksums, or compare those of a checkpoint", kShort, kInspect},
  };
}

std::vector<Option> bench_options() {
  return {
      {"untimed_steps", "bench", IntOption{&C::untimed_steps, 1, kMaxSteps}, "Steps of `bench step` before those timed",
       kShort, kBench},
      {"floor_seconds", "bench", RealOption{&C::floor_seconds, 0, 3600},
       "How long `bench floor` runs, at least one step", kShort, kBench},
      {"adamw_params", "bench", IntOption{&C::adamw_params, kMinAdamwParams, kMaxTokens},
       "Parameters that `bench adamw` and `bench machine` update, 14 bytes each: far more than the caches hold", kShort,
       kBench},
      {"machine_seconds", "bench", RealOption{&C::machine_seconds, 0, 3600},
       "How long `bench machine` measures each line of its tables; a dozen of them", kShort, kBench},
  };
}

std::vector<Option> plan_options() {
  return {
      {"rates", "plan", TextOption{&C::rates, Form::kPath, {}},
       "File of what this machine can do in a second: `bench machine` writes it; plan, train and bench step choose by "
       "it and say which step time to expect (without it, by those of an H200 machine)",
       kShort, kSteps},
      {"weight_slots", "plan", IntOption{&C::weight_slots, 2, 64}, "Device buffers for weights, else the plan chooses",
       kAdvanced, kSteps},
      {"grad_slots", "plan", IntOption{&C::grad_slots, 2, 64}, "Device buffers for gradients, else the plan chooses",
       kAdvanced, kSteps},
      {"vocab_chunk", "plan", IntOption{&C::vocab_chunk, 0, kMaxRows},
       "Vocabulary rows that travel as one segment; 0 = the plan chooses", kAdvanced, kSteps},
      {"resident_state_layers", "plan", IntOption{&C::resident_state_layers, 0, kMaxRows},
       "First layers that live on the device, AdamW too; else the plan chooses", kAdvanced, kSteps},
      {"resident_layers", "plan", IntOption{&C::resident_layers, 0, kMaxRows},
       "Next layers, whose weights keep a place of their own on the device; else the plan chooses", kAdvanced, kSteps},
      {"residuals", "plan", enum_option<&C::residuals>({"auto", "device", "host"}),
       "Where the inputs of layers wait for backward; auto is the device where they fit", kAdvanced, kSteps},
      {"recompute", "plan",
       TextOption{&C::recompute, Form::kChoice, {"auto", "full", "lean", "none"}, nullptr, {"keep"}},
       "What backward computes again: full a whole layer (for comparison), lean all but its down projection, none "
       "nothing; keep:n nothing of the last n layers; auto is lean or keep:n, as memory allows",
       kAdvanced, kSteps},
      {"mlp_chunk", "plan", TextOption{&C::mlp_chunk, Form::kChoice, {"auto", "none"}, nullptr, {"tokens", "features"}},
       "Runs the MLP in parts of n tokens (its weight gradients are summed in f32) or n features (its output is); gate "
       "and up are then never kept, backward makes them again; auto is none where that fits",
       kAdvanced, kSteps},
      {"head", "plan", TextOption{&C::head, Form::kChoice, {"auto", "chunks", "logits"}, nullptr, {"tokens"}},
       "Logits on the device: chunks those of one vocabulary chunk, made twice; logits all of them; tokens:n those of "
       "n tokens, with the whole head's weights and their f32 gradient; auto is logits where memory "
       "allows, else chunks",
       kAdvanced, kSteps},
      {"attention", "plan", enum_option<&C::attention>({"auto", "cudnn", "ferry"}),
       "Attention of the cuda backend: ferry's fused kernels, which take bf16 heads of 64, 80, 96 or 128 elements, or "
       "cuDNN, whose backward needs more scratch; plain kernels where the given one does not fit; auto is ferry, then "
       "cudnn",
       kAdvanced, kPasses | kGenerate},
  };
}

/// All sections, in the order in which help and files show them.
std::vector<Option> make_table() {
  std::vector<Option> table;
  for (const auto section : {model_options, data_options, optimizer_options, offload_options, run_options,
                             generate_options, eval_options, inspect_options, bench_options, plan_options}) {
    std::ranges::move(section(), std::back_inserter(table));
  }
  return table;
}

}  // namespace

std::span<const CommandInfo> command_table() {
  static const std::vector<CommandInfo> table = {
      {Command::kTrain, "train", "[CONFIG]", "Train a model; without a config file, a tiny one on a bundled text"},
      {Command::kGenerate, "generate", "[MODEL]", "Continue a text with a trained model"},
      {Command::kEval, "eval", "[MODEL]", "Measure the loss of a trained model on val_data"},
      {Command::kExport, "export", "SOURCE TARGET",
       "Write a run's model, a checkpoint or a Hugging Face folder as one that transformers loads"},
      {Command::kInspect, "inspect", "PATH",
       "Show what a model folder, checkpoint, safetensors file, token file or config holds"},
      {Command::kPlan, "plan", "[CONFIG]",
       "Print the memory, and the bytes moved per step, that training would need; allocates nothing, needs no GPU"},
      {Command::kBench, "bench", "TARGET [CONFIG]",
       "Measure all that plans go by (`machine`), `ops`, training steps (`step`), their products (`floor`), or "
       "`adamw`"},
  };
  return table;
}

const CommandInfo& find_command(std::string_view name) {
  std::vector<std::string_view> names;
  for (const CommandInfo& info : command_table()) {
    if (info.name == name) return info;
    names.emplace_back(info.name);
  }
  detail::throw_error(ErrorKind::kConfig, fmt::format("unknown command '{}'{} (commands: {})", shown(name),
                                                      did_you_mean(name, names), fmt::join(names, ", ")));
}

std::span<const Option> option_table() {
  static const std::vector<Option> table = make_table();
  return table;
}

std::vector<std::string_view> option_sections() {
  std::vector<std::string_view> sections;
  for (const Option& option : option_table()) {
    if (sections.empty() || sections.back() != option.section) sections.emplace_back(option.section);
  }
  return sections;
}

const Option* find_option(std::string_view key) {
  const auto table = option_table();
  const auto found = std::ranges::find_if(table, [&](const Option& option) { return option.key == key; });
  return found == table.end() ? nullptr : &*found;
}

std::string flag_of(const Option& option) {
  std::string flag = fmt::format("--{}", option.key);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

}  // namespace ferry
