// A function's control flow from bytes and from targets that the test states.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "catch.hpp"
#include "elf_builder.hpp"
#include "libprobe/code/decoder.hpp"
#include "libprobe/code/flow.hpp"

namespace reprobe::test {

// `padding`: how many of the bytes lie behind the function's end.
inline FunctionFlow flow_of(VirtAddr start, const Bytes& bytes,
                            std::initializer_list<std::pair<int, TargetKinds>> targets,
                            std::uint64_t padding = 0) {
  ElfHeader header;
  header.is64 = true;
  header.machine = EM_X86_64;
  const auto decoder = Decoder::open(header, false);
  REQUIRE(decoder);
  FunctionFlow flow;
  flow.function.start = start;
  flow.function.size = Size{bytes.size() - padding};
  flow.function.name = "f";
  flow.padding = Size{padding};
  flow.complete = true;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto code =
        decoder->decode_operands(ByteView(bytes).subspan(at), VirtAddr{start.value + at});
    REQUIRE(code);
    flow.code.push_back(*code);
    at += static_cast<std::size_t>(code->size.value);
  }
  flow.targets.push_back({start, kTargetEntry});
  for (const auto& [at, kinds] : targets) {
    flow.targets.push_back({VirtAddr{start.value + static_cast<std::uint64_t>(at)}, kinds});
  }
  std::ranges::sort(flow.targets, {}, &CodeTarget::address);
  return flow;
}

}  // namespace reprobe::test
