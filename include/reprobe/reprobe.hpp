// The library: what the commands of the tool do, as functions. The tool itself calls nothing else
// to list, audit, plan, verify and commit. Every function returns a Result: no exception leaves it,
// memory that runs out is an error (internal) like others. Nothing is printed.
//
//   auto input = reprobe::open_input("app");
//   auto fixed = input ? reprobe::plan(*input, reprobe::FixRequest{}) : ...;
//   auto done = fixed ? reprobe::commit(*input, *fixed, {}) : ...;
//
// docs/library.md has an example. Types come from the headers of libprobe, which are installed
// beside this one; only what is declared here is meant for other programs.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libprobe/audit/kernels.hpp"
#include "libprobe/audit/legacy_probes.hpp"
#include "libprobe/audit/link_objects.hpp"
#include "libprobe/elf/payload.hpp"
#include "libprobe/finding.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/commit.hpp"
#include "libprobe/rewrite/fix_file.hpp"
#include "libprobe/rewrite/guards/guards.hpp"
#include "libprobe/rewrite/index/relativize.hpp"
#include "libprobe/rewrite/sled/sled_file.hpp"
#include "libprobe/tracers/consumers.hpp"
#include "libprobe/verify/compare.hpp"

namespace reprobe {

// --- Reading -------------------------------------------------------------------------------------

// An ELF file for its probes: `ElfFile::open()` reads what it can of a damaged file, but probes are
// found by their section's name. Where the sections or their names cannot be read at all, "no
// probes" would be a guess, and this is an error (unreadable).
[[nodiscard]] Result<ElfFile> open_elf(std::shared_ptr<const ByteSource> source);
[[nodiscard]] Result<ElfFile> open_elf(const std::filesystem::path& path);

struct Listing {
  enum class From {
    notes,
    index,           // the notes are gone; the index says what they said
    other_sections,  // of names that no tracer looks at
  } from{};
  ProbeFile notes;
  LegacyProbes legacy;  // records of SystemTap up to 1.3; empty where there are notes
};

// The probes of a file, each with its verdict. `objects`: the inputs of the link, which prove more.
[[nodiscard]] Result<Listing> list(const ElfFile& file, const LinkObjects* objects = nullptr);

struct AuditRequest {
  std::vector<std::string> patterns{};   // "provider:name" globs; findings about the file stay
  Kernels kernels{};                     // for which the file is judged; nothing: all in use
  const LinkObjects* objects{};          // --objects
  bool with_consumers{true};             // the verdicts of tracers, too
  std::vector<std::string> consumers{};  // of consumer_names(); empty: all
};

struct AuditReport {
  ProbeFile notes;
  LegacyProbes legacy;
  std::vector<Finding> findings;           // what the reader had to step over, then the rules'
  std::vector<ConsumerVerdict> consumers;  // empty where no probe is chosen
};

[[nodiscard]] Result<AuditReport> audit(const ElfFile& file, const AuditRequest& request);

// --- Planning a rewrite: nothing is written ------------------------------------------------------

// What becomes of data behind the ELF file: moved along where that is known to be right, kept the
// file's last bytes, or left at its offset.
enum class PayloadMode { automatic, keep, ignore };

// A file that is to be rewritten.
struct Input {
  std::filesystem::path path;
  FileStamp stamp;                 // of the file before it was read
  ElfFile file;                    // what is rewritten: without the payload, unless that is ignored
  std::optional<ElfFile> whole{};  // the file with the payload, where `file` is without
  std::optional<Payload> payload{};  // behind `file` in `whole`
  PayloadMode payload_mode{};

  [[nodiscard]] const ElfFile& with_payload() const { return whole ? *whole : file; }
};

// Errors: unreadable, not_elf, malformed.
[[nodiscard]] Result<Input> open_input(const std::filesystem::path& path,
                                       PayloadMode payload = PayloadMode::automatic);

struct GuardsRequest {
  std::vector<std::string> patterns{};
  GuardsTo to{GuardsTo::site};
  ExportedCounters exported{};  // what is known of the files that may check them, too
};

struct RelativizeRequest {
  std::vector<std::string> patterns{};
};

// What gives the original back: sled --undo, guards --to restore; or the file without symbols at
// its sites: fix --undo-symbols.
struct UndoRequest {
  enum class Of { sleds, guards, symbols } of{};
};
struct Undone {
  Plan plan;
};

// What a rewrite is checked against before it takes the file's place.
struct Proof {
  // With what was asked for; `command` is always stated by plan().
  CompareOptions options{};
  // Names of sections that may differ for other readers, besides those that both files show to have
  // changed.
  std::vector<std::string> changed_sections{};
  // Sleds that are planned anew are compared with the file that they are planned from.
  std::shared_ptr<const ElfFile> original{};
};

// A rewrite of Input::file. What it borrows of its request (objects, debug file) must outlive it.
template <typename Details>
struct Planned {
  Details details;  // what the command did, with the plan
  ProbeFile probes;
  Proof proof;
  std::vector<std::string> warnings{};

  [[nodiscard]] const Plan& plan() const {
    if constexpr (requires { details.fix.plan; }) {
      return details.fix.plan;
    } else {
      return details.plan;
    }
  }
};

// Errors: usage, refused, malformed, internal. An empty plan: there is nothing to do.
[[nodiscard]] Result<Planned<FixedFile>> plan(const Input& input, const FixRequest& request);
[[nodiscard]] Result<Planned<SledResult>> plan(const Input& input, const SledRequest& request);
[[nodiscard]] Result<Planned<GuardsResult>> plan(const Input& input, const GuardsRequest& request);
[[nodiscard]] Result<Planned<RelativizePlan>> plan(const Input& input,
                                                   const RelativizeRequest& request);
[[nodiscard]] Result<Planned<Undone>> plan(const Input& input, const UndoRequest& request);

// --- Verifying -----------------------------------------------------------------------------------

// When LIEF reads input and output too: files up to 16 MiB that are not damaged, or any, or none.
enum class SecondOpinionMode { automatic, always, never };

struct VerifyRequest {
  Proof proof{};
  bool ignored_payload{};  // --payload=ignore: data behind the file need not be its last bytes
  SecondOpinionMode second_opinion{SecondOpinionMode::automatic};
};

// What a caller may want to say of how something was decided.
struct Remark {
  bool warning{};  // else of interest with -v
  std::string text;
};

struct Verdicts {
  RewriteCommand command{};       // the one whose proof holds, or that the result looks most like
  std::vector<Finding> findings;  // empty: proven
  std::vector<Remark> remarks;
};

// Is `after` what a command of this tool makes of `before`, and nothing else? Errors: unreadable,
// not_elf.
[[nodiscard]] Result<Verdicts> verify(const std::filesystem::path& before,
                                      const std::filesystem::path& after,
                                      const VerifyRequest& request);

// --- Committing ----------------------------------------------------------------------------------

struct WriteRequest {
  std::optional<std::filesystem::path> output{};  // nothing: in place
  bool dry_run{};                                 // only the refusals that a write would meet
  bool preserve_dates{};                          // keep the file's times
  // What would be lost, and must be said to be: CommitOptions.
  bool break_hardlinks{};
  bool drop_signature{};
  bool drop_verity{};
  SecondOpinionMode second_opinion{SecondOpinionMode::automatic};
};

// Writes the plan's result to a temporary file, verifies it and renames it into place. With an
// output an unchanged file is copied, so that a build step always finds its output; in place
// nothing is written. Errors: refused (what a rewrite would lose; a payload that may not move with
// the end of the file), io, internal (the result did not survive its check). In every error case
// the file is as it was, unless the message says that the new one is in place.
[[nodiscard]] Result<std::vector<Remark>> commit(const Input& input, const Plan& plan,
                                                 const Proof& proof, const WriteRequest& request);

template <typename Details>
[[nodiscard]] Result<std::vector<Remark>> commit(const Input& input,
                                                 const Planned<Details>& planned,
                                                 const WriteRequest& request) {
  return commit(input, planned.plan(), planned.proof, request);
}

// --- What it is made of ---------------------------------------------------------------------------

// The libraries that read code and files for this one, as they are linked: (name, version).
[[nodiscard]] std::vector<std::pair<std::string, std::string>> library_versions();

}  // namespace reprobe
