// Rules about arguments, limits and names. What each tracer refuses was tried with libbpf,
// gdb 13.1, perf 6.1 and bcc 0.26.
#include "audit_file.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

NewProbe probe(const std::string& arguments, std::uint64_t location = 0x1000) {
  return {.location = location, .provider = "p", .name = "one", .arguments = arguments};
}

Lines found(const std::string& arguments, std::uint16_t machine = EM_X86_64) {
  AuditFile file;
  file.kind.machine = machine;
  if (machine == EM_AARCH64) file.code = bytes_of({0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6});
  file.probes = {probe(arguments)};
  CAPTURE(arguments);
  return file.found();
}

}  // namespace

TEST_CASE("arguments that every tracer reads", "[audit]") {
  for (const char* arguments :
       {"", "8@%rax", "-4@%edi 8@%r8", "-4@$5 8@$-1", "8@(%rsp)", "-4@-20(%rbp)", "1@%sil",
        "8@8(%rax,%rdx,8)", "-4@-16(%rbp) -4@-20(%rbp)", "-4@(%rax,%rdx) -4@-16(%rbp)"}) {
    CHECK(found(arguments) == Lines{});
  }
  for (const char* arguments : {"8@x0", "-4@[sp, 12]", "-4@[sp]", "8@5", "8@sp"}) {
    CHECK(found(arguments, EM_AARCH64) == Lines{});
  }
}

TEST_CASE("arguments that some tracer does not read", "[audit]") {
  const auto [arguments, line] =
      GENERATE(std::pair<const char*, const char*>{"%rax", "warning argument-size-missing"},
               std::pair<const char*, const char*>{"8@%rax %rdx", "warning argument-size-missing"},
               std::pair<const char*, const char*>{"(%rax)", "warning argument-size-missing"},
               std::pair<const char*, const char*>{"x", "warning argument-size-missing"},
               std::pair<const char*, const char*>{"8f@%xmm0", "note argument-float"},
               std::pair<const char*, const char*>{"8f@-8(%rbp)", "note argument-float"},
               std::pair<const char*, const char*>{"16@%xmm0", "warning argument-size"},
               std::pair<const char*, const char*>{"3@%eax", "warning argument-size"},
               std::pair<const char*, const char*>{"8@%xmm0", "note argument-register"},
               std::pair<const char*, const char*>{"-1@%ah", "note argument-register"},
               std::pair<const char*, const char*>{"8@counter(%rip)", "note argument-symbol"},
               std::pair<const char*, const char*>{"8@counter+8(%rip)", "note argument-symbol"},
               std::pair<const char*, const char*>{"8@$counter", "note argument-symbol"},
               std::pair<const char*, const char*>{"8@0x10(%rax)", "warning argument-number"},
               std::pair<const char*, const char*>{"8@8+4(%rsp)", "warning argument-number"},
               std::pair<const char*, const char*>{"4@$0x10", "warning argument-number"},
               std::pair<const char*, const char*>{"8@QWORD PTR 8[rsp]", "note argument-operand"},
               std::pair<const char*, const char*>{"8@rax", "note argument-operand"},
               std::pair<const char*, const char*>{"8@%nonsense", "note argument-operand"},
               // gcc's operands for thread-local variables, refused by stap 4.8 and libbpf
               std::pair<const char*, const char*>{"-8@%fs:16(%rdx)", "note argument-operand"},
               std::pair<const char*, const char*>{"-8@%fs:(%rdx,%rax,8)", "note argument-operand"},
               std::pair<const char*, const char*>{"-4@%fs:ex@tpoff", "note argument-operand"},
               std::pair<const char*, const char*>{"-4@64(,%rax,4)", "note argument-operand"},
               std::pair<const char*, const char*>{"-4@tab(,%rax,4)", "note argument-symbol"});
  CHECK(found(arguments) == Lines{std::string(line) + " p:one"});
}

TEST_CASE("the order that libbpf misreads", "[audit]") {
  const Lines misread{"note argument-order p:one"};
  // %15[^,] takes "rbp) -4@(%rax", and "rdx" for the second register (usdt.c, parse_usdt_arg).
  CHECK(found("-4@-16(%rbp) -4@(%rax,%rdx)") == misread);
  CHECK(found("-4@(%rbp) -4@(%rax,%rdx,4)") == misread);
  // "rbp) -4@16(%rax" has 15 characters, with one more the scan stops.
  CHECK(found("-4@(%rbp) -4@16(%rax,%rdx)") == misread);
  CHECK(found("-4@(%rbp) -4@160(%rax,%rdx)") == Lines{});
  CHECK(found("-4@(%rbp) -4@%eax -4@(%rax,%rdx)") == Lines{});
}

TEST_CASE("AArch64 operands", "[audit]") {
  CHECK(found("-4@w0", EM_AARCH64) == Lines{"note argument-register p:one"});
  CHECK(found("8@[x0, x1]", EM_AARCH64) == Lines{"note argument-register p:one"});
}

TEST_CASE("one finding a probe, however many sites and arguments", "[audit]") {
  AuditFile file;
  file.probes = {probe("8@%xmm0 8@%xmm1"), probe("8@%xmm0 8@%xmm2", 0x1001),
                 probe("8@%rax 8@%rdx", 0x1002)};
  CHECK(file.found() == Lines{"note argument-register p:one"});
  const auto findings = AuditFile::findings(file.build());
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].evidence ==
        std::vector<std::string>{"8@%xmm0, 8@%xmm1, 8@%xmm2, at 2 of 3 sites"});
}

TEST_CASE("evidence shows arguments as the note spells them", "[audit]") {
  AuditFile file;
  file.probes = {probe("8f@%xmm0 -4f@%eax")};
  const auto findings = AuditFile::findings(file.build());
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].evidence == std::vector<std::string>{"8f@%xmm0, -4f@%eax, at 1 of 1 site"});
}

TEST_CASE("limits of libbpf", "[audit]") {
  std::string arguments = "8@%rax";
  for (int i = 1; i < 12; ++i) arguments += " 8@%rax";
  CHECK(found(arguments) == Lines{});
  CHECK(found(arguments + " 8@%rax") == Lines{"warning argument-count p:one"});

  AuditFile file;
  file.code = Bytes(0x800);
  // A nop, and a jump over the next: no row of nops.
  const auto add = [&](std::size_t i, const std::string& text) {
    file.code[i] = std::byte{0x90};
    file.probes.push_back(probe(text, 0x1000 + i));
  };
  for (std::size_t i = 0; i < 256; ++i) add(i, "8@$" + std::to_string(i));
  CHECK(file.found() == Lines{});
  add(256, "8@$0");  // the same text again
  CHECK(file.found() == Lines{});
  add(257, "8@$256");
  CHECK(file.found() == Lines{"warning spec-count p:one"});

  file.probes.clear();
  for (std::size_t i = 0; i < 1024; ++i) add(i, "8@%rax");
  CHECK(file.found() == Lines{});
  add(1024, "8@%rax");
  CHECK(file.found() == Lines{"note site-count p:one"});
}

TEST_CASE("sites of one name with different numbers of arguments", "[audit]") {
  AuditFile file;
  file.probes = {probe("8@%rax"), probe("8@%rdx", 0x1001)};
  CHECK(file.found() == Lines{});
  file.probes.push_back(probe("8@%rax 8@%rdx", 0x1002));
  CHECK(file.found() == Lines{"note probe-arguments-differ p:one"});
}

// Tried with perf 6.1: `perf stat -e sdt_p:NAME` for a uprobe event of that name.
TEST_CASE("names that perf takes for something else", "[audit]") {
  const auto [name, refused] = GENERATE(
      std::pair<const char*, bool>{"read", true}, std::pair<const char*, bool>{"write", true},
      std::pair<const char*, bool>{"misses", true}, std::pair<const char*, bool>{"cycles", true},
      std::pair<const char*, bool>{"rface", true}, std::pair<const char*, bool>{"r12", true},
      std::pair<const char*, bool>{"hup", true}, std::pair<const char*, bool>{"u", true},
      std::pair<const char*, bool>{"r", false}, std::pair<const char*, bool>{"read_done", false},
      std::pair<const char*, bool>{"mem", false}, std::pair<const char*, bool>{"period", false},
      std::pair<const char*, bool>{"request", false}, std::pair<const char*, bool>{"start", false});
  AuditFile file;
  file.probes = {probe("")};
  file.probes[0].name = name;
  CHECK(file.found() == (refused ? Lines{std::string("note probe-name-perf p:") + name} : Lines{}));
}
