// Plans the repairs of `reprobe fix`: dangling notes removed, note sections written canonically,
// base, order and semaphores put right. What cannot be done safely is refused with its reason.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "libprobe/audit/link_objects.hpp"
#include "libprobe/plan/plan.hpp"
#include "libprobe/probes/probe.hpp"
#include "libprobe/rewrite/repair_rules.hpp"

namespace reprobe {

struct FixOptions {
  bool remove_ambiguous{};
  bool respell{};  // arguments in a spelling that more tracers read (notes/respell.hpp)
  // Which probes may be removed or rewritten; all where it is empty. Others keep their bytes, and
  // so does what concerns the whole file.
  std::function<bool(const Probe&)> selected;
  RepairChoice repairs;          // every repair where it is left as it is
  const LinkObjects* objects{};  // those that judged the probes, where some did
};

struct Refusal {
  std::string provider;  // empty: the refusal is about the file or a section
  std::string name;
  std::optional<VirtAddr> site;
  std::string where;   // ".note.stapsdt+0x48", or ""
  std::string reason;  // stable words a program can compare
};

// One repair that the plan makes.
struct Repair {
  std::string rule;                  // repair_rules.hpp
  std::string what;                  // one half sentence
  std::optional<std::size_t> probe;  // index, where it is about one
};

struct FixPlan {
  Plan plan;
  std::vector<Repair> repairs;
  std::vector<std::size_t> removed;    // indices of probes, in note order
  std::vector<std::size_t> rewritten;  // indices of probes whose note changed its bytes
  std::optional<VirtAddr> base;        // where .stapsdt.base is put, where it moves or is new
  std::vector<Refusal> refused;
  std::vector<std::string> changed_sections;  // names, for the second opinion
};

// Errors: refused (ET_REL), internal. A section that cannot be rewritten safely is in `refused`;
// the rest is still planned.
[[nodiscard]] Result<FixPlan> plan_fix(const ElfFile& file, const ProbeFile& probes,
                                       const FixOptions& options);

}  // namespace reprobe
