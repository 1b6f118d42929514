// Options that commands share, and the values of each command's own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "libprobe/error.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/sled/sled.hpp"
#include "libprobe/verify/compare.hpp"
#include "tool/terminal.hpp"

namespace reprobe {

struct CommonOptions {
  bool json{};
  bool quiet{};
  bool verbose{};
  ColorMode color{ColorMode::automatic};
  std::vector<std::string> patterns;  // -p provider:name globs; empty: every probe
};

// Does any pattern fit "provider:name" (fnmatch(3))? True where there are no patterns.
[[nodiscard]] bool selected(const std::vector<std::string>& patterns, const Note& note);

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
  std::vector<std::string> consumers;  // of consumer_names(); empty: all
  std::string kernel;                  // a version of Linux; "": all that are in use
  std::vector<std::string> objects;
  std::vector<std::string> paths;
  std::string pid;  // a number or "all"; "": paths
};

enum class SecondOpinionMode { automatic, always, never };

// What becomes of data behind the ELF file: moved along where that is known to be right, kept the
// file's last bytes, or left at its offset.
enum class PayloadMode { automatic, keep, ignore };

// Of every command that rewrites a file.
struct WriteOptions {
  std::string file;
  std::string output;  // "": in place
  bool dry_run{};
  bool preserve_dates{};
  bool break_hardlinks{};
  bool drop_signature{};
  bool drop_verity{};
  PayloadMode payload{PayloadMode::automatic};
  SecondOpinionMode second_opinion{SecondOpinionMode::automatic};
};

// What becomes of symbols at probes' sites.
enum class SiteSymbolsMode { leave, write, undo };

struct FixCommandOptions : WriteOptions {
  CommonOptions common;
  std::string from_debug;  // "": the notes are the file's own
  std::vector<std::string> objects;
  bool remove_ambiguous{};
  bool respell{};
  bool upgrade{true};             // notes for records, where the file has no notes
  std::vector<std::string> only;  // --only and --skip: names of repairs
  std::vector<std::string> skip;
  bool new_build_id{};
  SiteSymbolsMode symbols{SiteSymbolsMode::leave};
};

struct SledCommandOptions : WriteOptions {
  CommonOptions common;
  std::optional<SledKind> kind;  // nothing: nop10, or what the file's sleds are
  GuardMode guard{GuardMode::automatic};
  bool debuggable{};
  bool allow_fork{};
  bool undo{};
};

enum class GuardsCommand { site, on, restore };

struct GuardsCommandOptions : WriteOptions {
  CommonOptions common;
  GuardsCommand to{GuardsCommand::site};
  std::vector<std::string> with;  // other files that may refer to the counters
  bool allow_exported{};
};

struct RelativizeCommandOptions : WriteOptions {
  CommonOptions common;
};

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
  bool ignored_payload{};
  SecondOpinionMode second_opinion{SecondOpinionMode::automatic};
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

}  // namespace reprobe
