// Proves that a rewrite changed only what the command that was asked for changes. For `fix`: every
// byte but those of notes is compared, every kept probe is found again at the same instruction,
// every removed one was dangling.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "libprobe/audit/link_objects.hpp"
#include "libprobe/elf/file.hpp"
#include "libprobe/finding.hpp"

namespace reprobe {

// What the caller of compare() has compared: bytes of the input, as offset and size, and all
// probes.
struct ComparedElsewhere {
  std::vector<std::pair<FileOffset, Size>> bytes;
};

// What was asked for. Nothing is chosen by what the result looks like.
enum class RewriteCommand {
  fix,          // with its restores and upgrades
  sled,         //
  guards_site,  // guards --to site
  guards_on,    // guards --to on
  relativize,
  undo,  // sled --undo, guards --to restore
};
inline constexpr std::array kRewriteCommands{RewriteCommand::fix,         RewriteCommand::sled,
                                             RewriteCommand::guards_site, RewriteCommand::guards_on,
                                             RewriteCommand::relativize,  RewriteCommand::undo};

// "fix", "sled", "guards-site", "guards-on", "relativize", "undo".
[[nodiscard]] std::string_view to_string(RewriteCommand command);

struct CompareOptions {
  // Nothing: it is not known, and each whose proof could hold is tried.
  std::optional<RewriteCommand> command{};
  bool allow_removed_ambiguous{};  // --remove-ambiguous was asked for
  bool allow_new_build_id{};       // --build-id=new was asked for
  // --from-debug: the file whose notes may be new in the result, in a section of their own. It must
  // outlive the call.
  const ElfFile* notes_from{};
  bool allow_respelled{};     // --respell was asked for
  bool allow_site_symbols{};  // --symbols was asked for
  const ComparedElsewhere* elsewhere{};
  const LinkObjects* objects{};  // --objects: what proves more of the input's notes
};

struct Comparison {
  RewriteCommand command{};  // the one that was asked for, or the one whose proof holds
  std::vector<Finding> findings;
};

// Rules: verify-bytes, verify-section, verify-probe-lost, verify-probe-added, verify-build-id, and
// those of the comparers of each command. No findings: the rewrite is proven. Where no command was
// stated and none is proven, the findings are of the one that the result looks most like.
[[nodiscard]] Comparison compare_as(const ElfFile& before, const ElfFile& after,
                                    const CompareOptions& options);
// The findings alone.
[[nodiscard]] std::vector<Finding> compare(const ElfFile& before, const ElfFile& after,
                                           const CompareOptions& options);

}  // namespace reprobe
