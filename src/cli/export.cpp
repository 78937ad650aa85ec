// SPDX-License-Identifier: Apache-2.0
// `ferry export`: a run's model, a checkpoint or a Hugging Face folder, written as one that transformers loads.
#include "train/export_model.h"

#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/plan_report.h"
#include "cli/run_folder.h"
#include "cli/text_report.h"
#include "core/human_units.h"
#include "io/printable.h"

namespace ferry {

int run_export(const CommandLine& line) {
  const std::filesystem::path source = find_model_folder(line.paths.at(0));
  const std::filesystem::path target = line.paths.at(1);
  const StoredWeights weights(source);
  const DType dtype = line.dtype_given ? line.config.dtype : weights.dtype();
  const ExportResult result = export_model(source, target, {.dtype = dtype});

  TextReport text;
  text.add("source", printable_name(source.string()) + ": " +
                         describe_model(weights.config(), result.n_parameters, weights.dtype()));
  const std::size_t n_files = result.weight_files.size();
  const std::string files = n_files == 1 ? result.weight_files.front() : fmt::format("{} files and an index", n_files);
  text.add("weights", fmt::format("{} in {}, {}{}", human_bytes(static_cast<std::size_t>(result.weight_bytes)),
                                  to_string(dtype), files, result.has_masters ? ": the exact f32 masters" : ""));
  if (!result.copied_files.empty()) text.add("copied", fmt::format("{}", fmt::join(result.copied_files, ", ")));
  text.add_line("target", printable_name(target.string()) + ", a Hugging Face folder");
  for (const std::string& each : std::move(text).lines()) fmt::print("{}\n", each);
  return 0;
}

}  // namespace ferry
