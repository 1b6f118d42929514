// Prints what FlowReader says about the functions of some addresses: what flow_test.py compares.
//
//   flow_tool FILE ADDRESS...
//
//   F START END PADDING complete|incomplete REASON
//   I ADDRESS SIZE TARGET RIP_TARGET     an instruction, padding included; - where there is none
//   T ADDRESS KINDS                      a target
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "libprobe/code/flow.hpp"

namespace {

using namespace reprobe;

template <typename T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  std::cerr << result.error().where << ": " << result.error().message << '\n';
  std::exit(3);
}

std::string hex_or_dash(const std::optional<VirtAddr>& address) {
  if (!address) return "-";
  char text[17];
  std::snprintf(text, sizeof text, "%llx", static_cast<unsigned long long>(address->value));
  return text;
}

void print(const FunctionFlow& flow) {
  std::cout << "F " << hex_or_dash(flow.function.start) << ' ' << hex_or_dash(flow.end()) << ' '
            << flow.padding.value << ' ' << (flow.complete ? "complete" : "incomplete") << ' '
            << flow.why_incomplete << '\n';
  for (const CodeInstruction& code : flow.code)
    std::cout << "I " << hex_or_dash(code.address) << ' ' << code.size.value << ' '
              << hex_or_dash(code.target) << ' ' << hex_or_dash(code.rip_target) << '\n';
  for (const CodeTarget& target : flow.targets)
    std::cout << "T " << hex_or_dash(target.address) << ' ' << target_names(target.kinds) << '\n';
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  const auto source = must(map_file(arguments[1]));
  const ElfFile file = must(ElfFile::open(source));
  std::vector<VirtAddr> sites;
  for (int i = 2; i < count; ++i) sites.push_back({std::stoull(arguments[i], nullptr, 16)});
  const FlowReader reader = must(FlowReader::open(file, sites));
  std::set<VirtAddr> printed;
  for (const VirtAddr site : sites) {
    const FunctionFlow flow = must(reader.function_of(site));
    if (printed.insert(flow.function.start).second) print(flow);
  }
}
