// mutate COMMAND SEED COUNT OUT BEFORE AFTER [SOURCE]: changes the result AFTER of a command COUNT
// times and asks the library whether it still is one. What it accepts is written to OUT: the file,
// and a line in OUT/accepted with its name, the kind of mutation and what was done. Prints, for
// each kind, how often it was made and how often accepted. COMMAND is fix (with SOURCE:
// --from-debug), sled, guards-site, guards-on, relativize, undo or gives-back, where the question
// is whether the changed file gives back anything but BEFORE.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>

#include "libprobe/plan/undo.hpp"
#include "libprobe/verify/compare.hpp"
#include "tests/mutate/draft.hpp"

namespace mutate {
namespace {

constexpr std::string_view kGivesBack = "gives-back";

struct Question {
  std::string command;
  const ElfFile* before{};
  const ElfFile* source{};
};

// The record says which command made it.
bool gives_back_other_bytes(const Question& question, const ElfFile& changed) {
  for (const auto name : {reprobe::kUndoSection, reprobe::kGuardsAtSite, reprobe::kGuardsOn,
                          reprobe::kSitesNamed}) {
    if (changed.section(name) == nullptr) continue;
    const auto plan = reprobe::plan_undo(changed, name);
    if (!plan) return false;
    const auto given = reprobe::apply(*plan, changed.source());
    if (!given) return false;
    const auto size = question.before->source().size();
    const auto old = question.before->source().slice(reprobe::FileOffset{0}, reprobe::Size{size},
                                                     "the original");
    return !old || !std::ranges::equal(*old, *given);
  }
  return false;
}

// `stated`: the command is told. `why`: what speaks against it, where somebody wants to know.
bool accepted(const Question& question, const Bytes& bytes, bool stated, std::string* why) {
  const auto changed = ElfFile::open(reprobe::borrowed_source(bytes));
  if (!changed) return false;
  if (question.command == kGivesBack) return gives_back_other_bytes(question, *changed);
  reprobe::CompareOptions options;
  options.allow_site_symbols = question.command == "fix-symbols";
  options.allow_new_build_id = question.command == "fix-build-id";
  options.allow_respelled = question.command == "fix-respell";
  const std::string_view command =
      question.command.starts_with("fix-") ? "fix" : std::string_view(question.command);
  const auto asked = std::ranges::find(reprobe::kRewriteCommands, command,
                                       [](auto known) { return reprobe::to_string(known); });
  if (asked == reprobe::kRewriteCommands.end()) return false;
  if (stated) options.command = *asked;
  options.notes_from = question.source;
  const auto findings = reprobe::compare(*question.before, *changed, options);
  if (why != nullptr && !findings.empty())
    *why = findings.front().rule + ": " + findings.front().message;
  return findings.empty();
}

// Where the two differ; ranges that are close to each other are one.
std::vector<Span> differences(ByteView before, ByteView after) {
  constexpr std::uint64_t kNear = 4;
  std::vector<Span> found;
  const std::size_t common = std::min(before.size(), after.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (before[i] == after[i]) continue;
    if (!found.empty() && i - found.back().end <= kNear) {
      found.back().end = i + 1;
    } else {
      found.push_back({i, i + 1});
    }
  }
  // What was appended is a range for each page, so that all of it has a share in what is picked.
  for (std::uint64_t at = common; at < after.size(); at += kPage)
    found.push_back({at, std::min<std::uint64_t>(at + kPage, after.size())});
  return found;
}

std::optional<ElfFile> open(const char* path) {
  auto source = reprobe::map_file(path);
  if (!source) return std::nullopt;
  auto file = ElfFile::open(std::move(*source));
  if (!file) return std::nullopt;
  return std::move(*file);
}

ByteView all_bytes(const ElfFile& file) {
  const auto view =
      file.source().slice(reprobe::FileOffset{0}, reprobe::Size{file.source().size()}, "the file");
  return view ? *view : ByteView{};
}

std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds;
  for (const auto& some : {header_kinds(), segment_kinds(), section_kinds(), table_kinds(),
                           unwind_kinds(), probe_kinds(), byte_kinds()}) {
    kinds.insert(kinds.end(), some.begin(), some.end());
  }
  return kinds;
}

struct Count {
  std::uint64_t made{}, accepted{};
};

class Run {
 public:
  Run(Question question, const ElfFile& after, std::filesystem::path out)
      : question_(std::move(question)),
        after_(after),
        out_(std::move(out)),
        original_(all_bytes(after).begin(), all_bytes(after).end()),
        changed_(differences(all_bytes(*question_.before), original_)),
        list_(out_ / "accepted") {}

  // Kinds take turns, so that those that a file has little of come as often as the others. One in
  // eight is made of two.
  void make(std::uint64_t seed, std::uint64_t count) {
    const auto kinds = all_kinds();
    std::uint64_t done = 0;
    for (std::uint64_t turn = 0; done < count && turn < 4 * count; ++turn) {
      Random random(seed * 1000003 + turn);
      const Kind& kind = kinds[turn % kinds.size()];
      Draft draft(after_, *question_.before, changed_, original_, random);
      if (!kind.apply(draft)) continue;
      if (random.one_in(8)) {
        const std::string first = std::exchange(draft.told, "");
        kinds[random.below(kinds.size())].apply(draft);
        draft.told = first + " and " + draft.told;
      }
      if (draft.bytes == original_) continue;
      ++done;
      ask(kind, draft, turn);
    }
  }

  void print() const {
    for (const auto& [kind, count] : counts_)
      fmt::print("{}\t{}\t{}\n", kind, count.made, count.accepted);
  }

 private:
  void ask(const Kind& kind, const Draft& draft, std::uint64_t turn) {
    Count& count = counts_[kind.name];
    ++count.made;
    // Half of the time verify is not told what was asked for, and finds out by itself.
    if (!accepted(question_, draft.bytes, turn / 2 % 2 == 0, nullptr)) return;
    ++count.accepted;
    const std::string name = fmt::format("{}", turn);
    std::ofstream file(out_ / name, std::ios::binary);
    const auto text = reprobe::as_text(draft.bytes);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    list_ << name << '\t' << kind.name << '\t' << draft.told << '\n';
  }

  Question question_;
  const ElfFile& after_;
  std::filesystem::path out_;
  Bytes original_;
  std::vector<Span> changed_;
  std::ofstream list_;
  std::map<std::string, Count> counts_;
};

int run(int argc, char** argv) {
  if (argc < 7) {
    std::cerr << "usage: mutate COMMAND SEED COUNT OUT BEFORE AFTER [SOURCE]\n";
    return 2;
  }
  const auto before = open(argv[5]), after = open(argv[6]);
  const auto source = argc > 7 ? open(argv[7]) : std::nullopt;
  if (!before || !after || (argc > 7 && !source)) {
    std::cerr << "mutate: an input cannot be read\n";
    return 3;
  }
  Question question{argv[1], &*before, source ? &*source : nullptr};
  // Nothing is shown by a result that is refused as it is, and it gives BEFORE back.
  std::string why;
  if (accepted(question, Bytes(all_bytes(*after).begin(), all_bytes(*after).end()), true, &why) ==
      (question.command == kGivesBack)) {
    std::cerr << "mutate: the unchanged result is not accepted: " << why << '\n';
    return 1;
  }
  Run mutations(std::move(question), *after, argv[4]);
  mutations.make(std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10));
  mutations.print();
  return 0;
}

}  // namespace
}  // namespace mutate

int main(int argc, char** argv) { return mutate::run(argc, argv); }
