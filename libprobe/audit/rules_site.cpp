// Rules about the instruction at the site: what the kernel and libbpf make of longer nops. x86
// only; elsewhere a site is the machine's one nop.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "libprobe/audit/redzone.hpp"
#include "libprobe/audit/rules_parts.hpp"
#include "libprobe/audit/sled_origin.hpp"
#include "libprobe/elf/fork_symbols.hpp"

namespace reprobe::rules {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kNop5 = 5;

// uprobes.c, is_prefix_bad: the probe gets -ENOTSUPP (524).
bool has_refused_prefix(ByteView bytes) {
  constexpr std::string_view kRefused = "\x26\x2e\x36\x3e\xf0";
  constexpr std::string_view kOthers = "\x66\x67\xf2\xf3\x64\x65";
  for (const std::byte byte : bytes) {
    const char c = static_cast<char>(byte);
    if (kRefused.find(c) != std::string_view::npos) return true;
    if (kOthers.find(c) == std::string_view::npos) return false;
  }
  return false;
}

// The one form that Linux 7.2 takes all the same, to make a call of it.
bool is_nop10(ByteView bytes) {
  constexpr std::string_view kNop10{"\x66\x2e\x0f\x1f\x84\x00\x00\x00\x00\x00", 10};
  return as_text(bytes) == kNop10;
}

// Where the kernel would put a call: Linux 6.17 to 7.1 on a five-byte nop (uprobes.c,
// can_optimize), at the site or, with libbpf since 2026-02, behind its 90 (has_nop_combo).
struct CallSite {
  VirtAddr address;
  bool behind_nop{};
};

std::optional<CallSite> call_site(const Probe& probe) {
  const Nop& nop = probe.facts.nop;
  if (nop.kind == NopKind::nop5 && nop.size == 1 + kNop5) {
    return CallSite{{probe.site.value + 1}, true};
  }
  const bool long_nop = nop.kind == NopKind::nop5 || nop.kind == NopKind::other;
  if (long_nop && nop.size == kNop5) return CallSite{probe.site, false};
  return std::nullopt;
}

// What `reprobe sled` puts around a site to move the stack pointer out of the way: lea
// -128(%rsp),%rsp before it and lea 128(%rsp),%rsp behind it. The kernel's call stores below it.
bool is_guarded(const ElfFile& file, const Probe& probe) {
  constexpr std::string_view kBefore{"\x48\x8d\x64\x24\x80", 5};
  constexpr std::string_view kBehind{"\x48\x8d\xa4\x24\x80\0\0\0", 8};
  if (probe.site.value < kBefore.size()) return false;
  const VirtAddr before{probe.site.value - kBefore.size()};
  const VirtAddr behind{probe.site.value + probe.facts.nop.size};
  return as_text(file.bytes_at(before, Size{kBefore.size()})) == kBefore &&
         as_text(file.bytes_at(behind, Size{kBehind.size()})) == kBehind;
}

bool crosses_page(const CallSite& call) { return call.address.value % kPage + kNop5 > kPage; }

// Red-zone answers by function: many sites may be in one.
class RedZones {
 public:
  explicit RedZones(const ElfFile& file)
      : file_(file), original_(OriginalFile::of(file)), budget_{file.source().size()} {}

  // A function with sleds is asked for as it was: jumps that lead to stubs stand in it now.
  const RedZoneUse& of(const Probe& probe) {
    if (!function_of(probe)) return unknown_;
    const Function& function = *function_of(probe);
    const auto [at, added] = known_.try_emplace({function.start.value, function.size.value});
    if (added)
      at->second = may_use_red_zone(original_ ? original_->elf() : file_, function, &budget_);
    return at->second;
  }

 private:
  const ElfFile& file_;
  std::unique_ptr<const OriginalFile> original_;  // of a file with sleds
  Size budget_;
  RedZoneUse unknown_{may_use_red_zone(file_, std::nullopt)};
  std::map<std::pair<std::uint64_t, std::uint64_t>, RedZoneUse> known_;
};

std::string nop_text(const Probe& probe, const CallSite& call) {
  return fmt::format("{} at {:#x}", call.behind_nop ? "nop and a 5-byte nop" : "5-byte nop",
                     probe.site.value);
}

Finding red_zone(const Probe& probe, const CallSite& call, const RedZoneUse& use) {
  Finding finding = about(
      probe, "redzone-nop5", Severity::error,
      call.behind_nop
          ? "traced with libbpf since 2026-02 on Linux 6.17 to 7.1, the program may compute wrong "
            "values: the kernel puts a call here, which overwrites the red zone"
          : "traced on Linux 6.17 to 7.1, the program may compute wrong values: the kernel puts a "
            "call here, which overwrites the red zone");
  finding.evidence.push_back(nop_text(probe, call));
  finding.evidence.push_back(use.reason);
  finding.hint =
      "compile the function with -mno-red-zone, or with a probe macro that emits one nop or "
      "nop,nop10 (sys/sdt.h, libbpf/usdt from 2026-07)";
  return finding;
}

Finding prefixed(const Probe& probe, bool nop10) {
  Finding finding = about(
      probe, "site-prefixed-nop", Severity::error,
      nop10 ? "the kernel before Linux 7.2 refuses a probe here (error 524) or never arms it: the "
              "nop has a segment prefix"
            : "the kernel refuses a probe here (error 524) or never arms it: the nop has a segment "
              "or lock prefix");
  finding.evidence.push_back(
      fmt::format("{}-byte nop at {:#x}", probe.facts.nop.size, probe.site.value));
  finding.hint = "put a plain nop (90) at the site, before the long one";
  return finding;
}

Finding page_cross(const Probe& probe, const CallSite& call) {
  Finding finding = about(probe, "site-page-cross", Severity::note,
                          "the 5-byte nop crosses a page: the kernel never optimises it, a hit "
                          "always costs a trap");
  finding.evidence.push_back(nop_text(probe, call));
  finding.hint = "align the site to 8";
  return finding;
}

// The trampoline that the kernel's call leads to is mapped with VM_DONTCOPY (uprobes.c,
// get_uprobe_trampoline); the child has the call and not what it calls. Measured on Linux 6.18:
// each child that passed a site died of SIGSEGV.
Finding forked(const ElfFile& file, const std::vector<const Probe*>& called) {
  const std::vector<std::string> how = fork_symbols(file);
  Finding finding = about_file(
      "nop5-fork", how.empty() ? Severity::warning : Severity::error,
      fmt::format("traced on Linux 6.17 to 7.1, a forked child of the program dies where it passes "
                  "{}: the kernel puts a call there, and the child has not what it calls",
                  called.size() == 1 ? "a probe" : plural(called.size(), "site")));
  finding.evidence.push_back("5-byte nops at the sites of " + shown_names(called));
  finding.evidence.push_back(how.empty() ? "nothing in the file forks; a program that loads it may"
                                         : fmt::format("it takes {}", fmt::join(how, ", ")));
  finding.hint =
      "a probe macro that emits one nop or nop,nop10 (sys/sdt.h, libbpf/usdt from 2026-07), or "
      "reprobe sled --kind=nop10";
  return finding;
}

}  // namespace

void add_site_findings(const ElfFile& file, const ProbeFile& probes, const Kernels& kernels,
                       std::vector<Finding>& out) {
  const std::uint16_t machine = file.header().machine;
  if (file.header().type == ET_REL || (machine != EM_X86_64 && machine != EM_386)) return;
  RedZones red_zones(file);
  std::vector<const Probe*> called;
  for (const Probe& probe : probes.probes) {
    if (!wanted(probe) || probe.facts.nop.kind == NopKind::none) continue;
    const ByteView bytes = file.bytes_at(probe.site, Size{probe.facts.nop.size});
    if (has_refused_prefix(bytes)) {
      const bool nop10 = is_nop10(bytes);
      if (!nop10 || refuse_nop10(kernels)) out.push_back(prefixed(probe, nop10));
      continue;
    }
    const bool calls = machine == EM_X86_64 && make_calls_of_nop5(kernels);
    const auto call = calls ? call_site(probe) : std::nullopt;
    if (!call) continue;
    if (!crosses_page(*call)) called.push_back(&probe);
    if (crosses_page(*call)) {
      out.push_back(page_cross(probe, *call));
    } else if (is_guarded(file, probe) || (probe.section == kSledSection && !probe.origin)) {
      continue;  // where the record of a sled's function is gone, nobody knows: it was guarded if
                 // needed
    } else if (const RedZoneUse& use = red_zones.of(probe); use.may_use) {
      out.push_back(red_zone(probe, *call, use));
    }
  }
  if (!called.empty()) out.push_back(forked(file, called));
}

}  // namespace reprobe::rules
