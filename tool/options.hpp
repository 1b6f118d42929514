// Options that commands share, and the values of each command's own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reprobe/reprobe.hpp"
#include "tool/inputs.hpp"
#include "tool/terminal.hpp"

namespace reprobe {

struct CommonOptions {
  bool json{};
  bool quiet{};
  bool verbose{};
  ColorMode color{ColorMode::automatic};
  std::vector<std::string> patterns;  // -p provider:name globs; empty: every probe
};

struct ListOptions {
  CommonOptions common;
  std::vector<std::string> files;
  std::vector<std::string> objects;  // --objects, here and below: the inputs of the link
  bool deps{};
  std::string root;  // "": this system
  std::string pid;   // a number or "all"; "": files
  std::string as;    // of attach_form_names(); "": the table
};

struct AuditOptions {
  CommonOptions common;
  bool sarif{};
  bool json_lines{};
  WalkOptions walk;
  std::size_t jobs{1};
  std::vector<std::string> consumers;  // of consumer_names(); empty: all
  std::string kernel;                  // a version of Linux; "": all that are in use
  std::vector<std::string> objects;
  std::vector<std::string> paths;
  std::string pid;     // a number or "all"; "": paths
  bool only_errors{};  // --fail-on=error: warnings alone are exit 0
};

// Of every command that rewrites a file.
struct RewriteOptions {
  CommonOptions common;
  std::string file;
  PayloadMode payload{PayloadMode::automatic};
  WriteRequest write;  // where to, and what may be lost
};

struct FixCommandOptions : RewriteOptions {
  FixRequest request;      // without what is named here by paths
  std::string from_debug;  // "": the notes are the file's own
  std::vector<std::string> objects;
  bool undo_symbols{};
};

struct SledCommandOptions : RewriteOptions {
  SledRequest request;
  bool undo{};
};

enum class GuardsCommand { site, on, restore };

struct GuardsCommandOptions : RewriteOptions {
  GuardsCommand to{GuardsCommand::site};
  std::vector<std::string> with;  // other files that may refer to the counters
  bool allow_exported{};
};

struct RelativizeCommandOptions : RewriteOptions {};

struct VerifyOptions {
  CommonOptions common;
  std::optional<RewriteCommand> command;  // nothing: each is tried
  std::string before;
  std::string after;
  std::string from_debug;
  std::vector<std::string> objects;
  bool removed_ambiguous{};
  bool respelled{};
  bool new_build_id{};
  bool named_sites{};
  PayloadMode payload{PayloadMode::keep};
  SecondOpinionMode second_opinion{SecondOpinionMode::automatic};
};

struct LdOptions {
  std::vector<std::string> steps;  // empty: REPROBE_STEPS
  std::vector<std::string>
      words;               // behind "--": the linker, unless it is the usual one, and its words
  bool has_words{};        // "--" was there
  bool print_folder{};     // --dir
  std::string new_folder;  // --make-dir
};

struct DiffOptions {
  CommonOptions common;
  std::string before;
  std::string after;
};

// Each command: its exit code. Results go to stdout, the rest through the terminal.
int run_list(const ListOptions& options);
int run_list_process(const ListOptions& options);  // --pid
int run_audit(const AuditOptions& options);
int run_fix(const FixCommandOptions& options);
int run_sled(const SledCommandOptions& options);
int run_guards(const GuardsCommandOptions& options);
int run_relativize(const RelativizeCommandOptions& options);
int run_verify(const VerifyOptions& options);
int run_diff(const DiffOptions& options);
int run_ld(const LdOptions& options);

// A whole command line, "reprobe" first: for a command that runs others.
int run_command_line(const std::vector<std::string>& words);

}  // namespace reprobe
