// Rules about arguments that some tracer cannot read. Compilers choose the operands, so most are
// only worth knowing; a spelling that has a readable equivalent is a warning. What each tracer
// reads: docs/consumers.md, section 4.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "libprobe/audit/rules_parts.hpp"

namespace reprobe::rules {
namespace {

bool is_x86(std::uint16_t machine) { return machine == EM_X86_64 || machine == EM_386; }

// An argument, with the text of its note from it to the end.
struct ArgumentPlace {
  const Argument& argument;
  std::string_view rest;
  std::uint16_t machine;
};

struct ArgumentRule {
  std::string_view name;
  Severity severity;
  bool (*applies)(const ArgumentPlace&);
  const char* message;
  const char* hint;
};

constexpr const char* kRespell = "reprobe fix --respell writes it so that all tracers read it";
constexpr const char* kInteger =
    "pass an integer, or a pointer to the value: no tracer but SystemTap reads floating point";

bool size_missing(const ArgumentPlace& at) {
  return !at.argument.size && at.argument.kind == Argument::Kind::registr;
}

// Of what is no register the size is not known.
bool size_unknown(const ArgumentPlace& at) {
  return !at.argument.size && at.argument.kind != Argument::Kind::other;
}

bool is_float_type(const Argument& argument) { return argument.type.starts_with('f'); }

bool is_float(const ArgumentPlace& at) { return is_float_type(at.argument); }

bool odd_size(const ArgumentPlace& at) {
  const int size = std::abs(at.argument.size.value_or(0));
  return size != 1 && size != 2 && size != 4 && size != 8;
}

// Registers of which libbpf's table (calc_pt_regs_off) has no name.
bool special_register(const ArgumentPlace& at) {
  constexpr std::array<std::string_view, 4> kHigh{"ah", "bh", "ch", "dh"};
  return std::ranges::any_of(at.argument.registers, [&](const std::string& name) {
    if (is_x86(at.machine)) {
      return name.find("mm") != std::string::npos || name.starts_with("st") ||
             std::ranges::find(kHigh, name) != kHigh.end();
    }
    constexpr std::string_view kVectors = "vqdhbw";
    return at.machine == EM_AARCH64 && kVectors.find(name.front()) != std::string_view::npos;
  });
}

// gcc -masm=intel: "DWORD PTR 16[rsp]", "edi"; or a bare number.
bool not_att(const ArgumentPlace& at) {
  return is_x86(at.machine) && at.argument.operand.find_first_of("%$") == std::string::npos;
}

// "%fs:16(%rdx)", a thread-local variable, and "8(,%rax,4)", which has no base. Where a symbol is
// the base, names_symbol() tells.
bool not_addressable(const ArgumentPlace& at) {
  const std::string_view operand = at.argument.operand;
  if (!is_x86(at.machine) || at.argument.kind != Argument::Kind::memory) return false;
  return operand.find(':') != std::string_view::npos ||
         operand.find("(,") != std::string_view::npos;
}

// "[x1, #:lo12:sym]" on Arm, "%lo(sym)(a5)" on RISC-V, "sym@toc@l(9)" on ppc64.
bool names_symbol_elsewhere(const ArgumentPlace& at) {
  if (at.argument.kind != Argument::Kind::memory) return false;
  const std::string_view operand = at.argument.operand;
  if (at.machine == EM_AARCH64 || at.machine == EM_ARM) return operand.find(':') != operand.npos;
  const auto open = operand.rfind('(');
  return open != operand.npos && std::ranges::any_of(operand.substr(0, open), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
         });
}

// A symbol's address or what is there: "sym(%rip)", "$sym".
bool names_symbol(const ArgumentPlace& at) {
  if (!is_x86(at.machine)) return names_symbol_elsewhere(at);
  std::string_view text = at.argument.operand;
  const auto open = text.find('(');
  if (text.starts_with('%')) return false;
  if (open != std::string_view::npos) text = text.substr(0, open);
  if (text.starts_with('$')) text.remove_prefix(1);
  if (text.starts_with("0x") || text.starts_with("-0x")) return false;
  const bool rip = std::ranges::find(at.argument.registers, "rip") != at.argument.registers.end();
  return rip || std::ranges::any_of(text, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.';
         });
}

// "0x10(%rax)", "8+4(%rsp)", "$0x10".
bool number_form(const ArgumentPlace& at) {
  if (!is_x86(at.machine) || at.argument.operand.starts_with('%')) return false;
  const std::string_view operand = at.argument.operand;
  std::string_view text = operand.substr(0, operand.find('('));
  if (text.starts_with('$')) text.remove_prefix(1);
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return text.find_first_of("xX+-*") != std::string_view::npos;
}

// libbpf (parse_usdt_arg) scans "N@off(%15[^,],": in a plain "off(%r)" that a comma follows within
// 15 characters, it takes the text up to that comma for the register.
bool scanned_wrongly(const ArgumentPlace& at) {
  if (!is_x86(at.machine) || at.argument.kind != Argument::Kind::memory) return false;
  const auto open = at.argument.operand.find("(%");
  if (open == std::string::npos || at.argument.operand.find(',') != std::string::npos) {
    return false;
  }
  constexpr std::size_t kScanned = 15;
  constexpr std::size_t kReach = 32;  // up to the register behind the comma
  const std::string_view after = at.rest.substr(open + 2, kReach);
  const auto comma = after.find(',');
  if (comma == std::string_view::npos || comma > kScanned) return false;
  const auto next = after.find_first_not_of(" \t", comma + 1);
  return next != std::string_view::npos && after[next] == '%';
}

bool indexed_elsewhere(const ArgumentPlace& at) {
  return at.machine == EM_AARCH64 && at.argument.registers.size() > 1;
}

bool not_understood(const ArgumentPlace& at) { return at.argument.kind == Argument::Kind::other; }

// The first that applies to an argument.
constexpr std::array kArgumentRules{
    ArgumentRule{"argument-size-missing", Severity::warning, size_missing,
                 "an argument has no size: libbpf refuses the probe, bcc skips the argument",
                 kRespell},
    ArgumentRule{"argument-size-missing", Severity::warning, size_unknown,
                 "an argument has no size: libbpf refuses the probe, bcc skips the argument",
                 "write the size, as in -4@(%rax); sys/sdt.h does"},
    ArgumentRule{"argument-operand", Severity::note, not_understood,
                 "an argument has an operand that no tracer is known to read",
                 "pass an integer: sys/sdt.h writes an operand of the assembler"},
    ArgumentRule{"argument-float", Severity::note, is_float,
                 "a floating-point argument: libbpf refuses the probe, gdb lists it without "
                 "arguments",
                 kInteger},
    ArgumentRule{"argument-size", Severity::warning, odd_size,
                 "an argument's size is not 1, 2, 4 or 8: perf stops reading the file's probes "
                 "there, libbpf refuses the probe",
                 "pass an integer of at most 8 bytes, or a pointer to the value"},
    ArgumentRule{
        "argument-register", Severity::note, special_register,
        "an argument is in a register that libbpf and perf cannot read: libbpf refuses the "
        "probe, bcc reads 0 or skips the argument",
        kInteger},
    ArgumentRule{
        "argument-operand", Severity::note, not_att,
        "an argument is not in AT&T syntax: no tracer is known to read it",
        "reprobe fix --respell writes registers and addresses in AT&T syntax; compile without "
        "-masm=intel, in Rust with options(att_syntax)"},
    ArgumentRule{"argument-symbol", Severity::note, names_symbol,
                 "an argument is named by a symbol: libbpf refuses the probe, gdb lists it without "
                 "arguments",
                 "pass the value through a local variable that is not constant"},
    ArgumentRule{"argument-operand", Severity::note, not_addressable,
                 "an argument has an operand that no tracer is known to read",
                 "pass the value through a local variable that is not constant"},
    ArgumentRule{"argument-number", Severity::warning, number_form,
                 "an argument has a hexadecimal or composed number: libbpf refuses the probe, gdb "
                 "lists it without arguments",
                 kRespell},
    ArgumentRule{"argument-order", Severity::note, scanned_wrongly,
                 "libbpf misreads the argument because an indexed one follows closely, and refuses "
                 "the probe",
                 kRespell},
    ArgumentRule{"argument-register", Severity::note, indexed_elsewhere,
                 "an argument is addressed by two registers: libbpf refuses the probe", kInteger},
};

// What one rule found in the probes of one name.
struct Hits {
  const Probe* first{};
  std::size_t sites{};
  std::vector<std::string> texts;  // different ones, as far as they are shown
  bool more{};

  void add(const Probe& probe, const Argument& argument) {
    constexpr std::size_t kShown = 4;
    constexpr std::size_t kLong = 60;
    if (first == nullptr) first = &probe;
    std::string text = argument.operand.substr(0, kLong);
    if (argument.size) {
      text.insert(0, fmt::format("{}{}@", *argument.size, is_float_type(argument) ? "f" : ""));
    }
    if (std::ranges::find(texts, text) != texts.end()) return;
    more = texts.size() == kShown;
    if (!more) texts.push_back(std::move(text));
  }
};

void look_at(const Probe& probe, std::uint16_t machine,
             std::array<Hits, kArgumentRules.size()>& hits) {
  std::string_view rest = probe.note.arguments;
  std::array<bool, kArgumentRules.size()> here{};
  for (const Argument& argument : probe.arguments) {
    const auto at = rest.find(argument.operand);
    if (at != std::string_view::npos) rest.remove_prefix(at);
    for (std::size_t r = 0; r < kArgumentRules.size(); ++r) {
      if (!kArgumentRules[r].applies({argument, rest, machine})) continue;
      hits[r].add(probe, argument);
      here[r] = true;
      break;
    }
    rest.remove_prefix(std::min(rest.size(), argument.operand.size()));
  }
  for (std::size_t r = 0; r < kArgumentRules.size(); ++r) hits[r].sites += here[r] ? 1 : 0;
}

}  // namespace

void add_argument_findings(const ElfFile& file, const ProbeFile& probes,
                           std::vector<Finding>& out) {
  for (const Name& name : names_of(probes)) {
    std::array<Hits, kArgumentRules.size()> hits;
    for (const Probe* probe : name) look_at(*probe, file.header().machine, hits);
    for (std::size_t r = 0; r < kArgumentRules.size(); ++r) {
      if (hits[r].first == nullptr) continue;
      Finding finding = about(*hits[r].first, kArgumentRules[r].name, kArgumentRules[r].severity,
                              kArgumentRules[r].message);
      finding.evidence.push_back(fmt::format("{}{}, at {} of {}", fmt::join(hits[r].texts, ", "),
                                             hits[r].more ? ", ..." : "", hits[r].sites,
                                             plural(name.size(), "site")));
      finding.hint = kArgumentRules[r].hint;
      out.push_back(std::move(finding));
    }
  }
}

}  // namespace reprobe::rules
