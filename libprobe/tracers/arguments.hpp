// Which arguments of a note a consumer can read. Each function follows one consumer's parser.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace reprobe::consumers {

struct ArgumentFault {
  std::size_t number{};      // of the first argument that cannot be read, from 1
  std::string_view reason;   // reason::argument_*
  std::string_view operand;  // where it starts; into the text
};

// `text`: the note's arguments; `machine`: EM_*. Nothing where all can be read.
using ArgumentRule = std::optional<ArgumentFault>(std::string_view text, std::uint16_t machine);

ArgumentRule libbpf_arguments;      // since 1.7
ArgumentRule libbpf_1_1_arguments;  // without indexed operands
ArgumentRule bcc_arguments;
ArgumentRule bpftrace_0_17_arguments;  // with bcc 0.26: knows no riscv, no aarch64 pairs
ArgumentRule gdb_arguments;
ArgumentRule systemtap_arguments;
ArgumentRule perf_arguments;

// What perf writes of the arguments into its probe definition: the readable ones, with their
// numbers.
[[nodiscard]] std::string perf_definition(std::string_view text, std::uint16_t machine);

// Why an operand is not read: what it looks like to a reader that knows all forms.
[[nodiscard]] std::string_view operand_reason(std::string_view argument, std::uint16_t machine);

}  // namespace reprobe::consumers
