// What a tracer's script that was written for one file finds in another: the probes by their names
// and what each gives. Addresses, registers, the order of the notes and how often a probe was
// inlined may differ; they are of no concern to the script.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "libprobe/probes/probe.hpp"

namespace reprobe {

// What an argument is, without where it stands.
struct ArgumentShape {
  std::optional<int> size;  // bytes, negative: signed; nothing where the note does not say
  std::string type;         // as Argument::type
  auto operator<=>(const ArgumentShape&) const = default;
};

// What one site gives. The sites of a name may differ: the compiler copies a template's probe, and
// a probe may be used with values of several types.
struct Signature {
  std::vector<ArgumentShape> arguments;
  bool semaphore{};
  auto operator<=>(const Signature&) const = default;
};

[[nodiscard]] Signature signature_of(const Probe& probe);

// The sites of one name: how many have each signature.
using SiteCounts = std::map<Signature, std::size_t>;
[[nodiscard]] std::size_t sites_of(const SiteCounts& sites);

// The probes of a file, or of the members of an archive together, as far as diff() compares them.
class ProbeSurface {
 public:
  using Name = std::pair<std::string, std::string>;  // provider, name

  // False for a dangling probe, which is counted only: a tracer has nothing of it.
  bool add(const Probe& probe);

  [[nodiscard]] const std::map<Name, SiteCounts>& names() const { return names_; }
  [[nodiscard]] std::size_t dangling() const { return dangling_; }

 private:
  std::map<Name, SiteCounts> names_;
  std::size_t dangling_{};
};

struct NameDifference {
  std::string provider;
  std::string name;
  SiteCounts before;  // empty: the name is new
  SiteCounts after;   // empty: the name is gone
};

// Each list by provider and name.
struct ProbeDifferences {
  std::vector<NameDifference> removed;
  std::vector<NameDifference> added;
  std::vector<NameDifference> changed;     // a signature is gone, or is new
  std::vector<NameDifference> site_count;  // the same signatures at more or fewer sites: no change
  std::size_t same{};                      // names with the same signatures, site_count included

  [[nodiscard]] bool none() const { return removed.empty() && added.empty() && changed.empty(); }
};

[[nodiscard]] ProbeDifferences diff(const ProbeSurface& before, const ProbeSurface& after);

// The signature that went and the one that came. Nothing where there are several or one of the two
// is missing: which became which is then not known.
[[nodiscard]] std::optional<std::pair<Signature, Signature>> replaced_signature(
    const NameDifference& changed);

}  // namespace reprobe
