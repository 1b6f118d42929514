// The options of each command, with their help. CLI11 is a heavy header: only these units have it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tool/options.hpp"

namespace reprobe {

inline constexpr const char* kOutput = "Output";  // headings of --help
inline constexpr const char* kSafety = "What may be lost";

// An option that takes one word of several, `words`, each with the value that it stands for. The
// first is the default, unless the option is made required().
template <typename T, typename Value>
CLI::Option* add_choice(CLI::App& command, const std::string& name, T& value,
                        const std::vector<std::pair<std::string, Value>>& words,
                        const char* type_name, const std::string& what) {
  std::vector<std::string> names;
  for (const auto& [word, ignored] : words) names.push_back(word);
  return command
      .add_option_function<std::string>(
          name,
          [&value, words](const std::string& chosen) {
            for (const auto& [word, meant] : words) {
              if (word == chosen) value = meant;
            }
          },
          what)
      ->type_name(type_name)
      ->check(CLI::IsMember(names));
}

// What commands have in common.
void add_common(CLI::App& command, CommonOptions& common);
void add_second_opinion(CLI::App& command, SecondOpinionMode& mode);
// --payload of the rewrite, or of its check, which has no `auto`.
CLI::Option* add_payload(CLI::App& command, PayloadMode& mode, bool automatic,
                         const std::string& what);
// --objects.
CLI::Option* add_objects(CLI::App& command, std::vector<std::string>& objects);

// Commands that read (command_line_read.cpp).
void add_list(CLI::App& app, ListOptions& options);
void add_audit(CLI::App& app, AuditOptions& options);
void add_verify(CLI::App& app, VerifyOptions& options);
void add_diff(CLI::App& app, DiffOptions& options);

void add_ld(CLI::App& app, LdOptions& options);

// Commands that rewrite a file (command_line_write.cpp).
void add_fix(CLI::App& app, FixCommandOptions& options);
void add_sled(CLI::App& app, SledCommandOptions& options);
void add_guards(CLI::App& app, GuardsCommandOptions& options);
void add_relativize(CLI::App& app, RelativizeCommandOptions& options);

}  // namespace reprobe
