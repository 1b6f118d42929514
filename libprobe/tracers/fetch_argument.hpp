// A probe's argument in the language of the kernel's uprobe events, for tracers that know no USDT.
// Source: Documentation/trace/uprobetracer.rst, and the register names of
// arch/{x86,arm64}/kernel/ptrace.c (regs_query_register_offset) of Linux 6.18.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "libprobe/notes/arguments.hpp"

namespace reprobe {

// "arg1=-4(%bp):s32" as "-4(%bp):s32". Nothing for what the kernel cannot fetch: indexed memory,
// symbols, floating point, %ah and its like, and every machine but x86-64 and aarch64.
[[nodiscard]] std::optional<std::string> fetch_argument(const Argument& argument,
                                                        std::uint16_t machine);

}  // namespace reprobe
