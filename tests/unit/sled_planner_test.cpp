// Which tactic serves which site, and where none does. Bytes as GNU as writes them.

#include "catch.hpp"
#include "flow_of_bytes.hpp"
#include "libprobe/rewrite/sled/planner.hpp"

using namespace reprobe;
using namespace reprobe::test;

namespace {

constexpr VirtAddr kPlanAt{0x1000};

VirtAddr at(std::uint64_t offset) { return {kPlanAt.value + offset}; }

SledRules easy_rules(SledKind kind = SledKind::nop10) {
  return {.kind = kind,
          .needs_guard = [](const FunctionFlow&, VirtAddr) { return false; },
          .arguments_fit = [](VirtAddr, std::int64_t) { return true; },
          .unwinds = [](const StubPlan&) { return true; },
          .same_row = [](VirtAddr, VirtAddr) { return true; }};
}

SledPlan plan_of(const FunctionFlow& flow, std::vector<VirtAddr> sites,
                 SledRules rules = easy_rules()) {
  SledPlanner planner(std::move(rules));
  planner.add(flow, sites);
  return std::move(planner).finish();
}

std::vector<std::uint64_t> instructions_of(const StubPlan& stub) {
  std::vector<std::uint64_t> offsets;
  for (const StubStep& step : stub.steps) {
    if (step.keeps_instruction()) offsets.push_back(step.instruction.address.value - kPlanAt.value);
  }
  return offsets;
}

// push %rbp; mov %rsp,%rbp; nop; mov %edi,%eax; xor %ecx,%ecx; pop %rbp; ret
const Bytes kPlainCode =
    bytes_of({0x55, 0x48, 0x89, 0xe5, 0x90, 0x89, 0xf8, 0x31, 0xc9, 0x5d, 0xc3});

}  // namespace

TEST_CASE("a run that starts with the site is displaced", "[sled]") {
  const FunctionFlow flow = flow_of(kPlanAt, kPlainCode, {{4, kTargetSite}});
  const SledPlan plan = plan_of(flow, {at(4)});
  REQUIRE(plan.sites.size() == 1);
  CHECK(plan.sites[0].tactic == Tactic::displace);
  REQUIRE(plan.patches.size() == 1);
  CHECK(plan.patches[0].at == at(4));
  CHECK(plan.patches[0].size == Size{5});
  CHECK(instructions_of(plan.stubs[0]) == std::vector<std::uint64_t>{5, 7});
  CHECK(plan.stubs[0].resume == at(9));
}

TEST_CASE("a target behind the site makes the run begin before it", "[sled]") {
  const FunctionFlow flow = flow_of(kPlanAt, kPlainCode, {{4, kTargetSite}, {5, kTargetBranch}});
  const SledPlan plan = plan_of(flow, {at(4)});
  REQUIRE(plan.sites.size() == 1);
  CHECK(plan.sites[0].tactic == Tactic::displace);
  CHECK(plan.patches[0].at == at(0));
  CHECK(plan.patches[0].size == Size{5});
  CHECK(instructions_of(plan.stubs[0]) == std::vector<std::uint64_t>{0, 1});
  CHECK(plan.stubs[0].resume == at(5));
}

TEST_CASE("no target of any kind stays inside a window", "[sled]") {
  for (const TargetKinds kind :
       {kTargetBranch, kTargetForeign, kTargetTable, kTargetLandingPad, kTargetSymbol, kTargetFde,
        kTargetRelocation, kTargetWord, kTargetLea, kTargetEndbr}) {
    CAPTURE(target_names(kind));
    const FunctionFlow flow =
        flow_of(kPlanAt, kPlainCode, {{1, kind}, {4, kTargetSite}, {5, kind}, {7, kind}});
    const SledPlan plan = plan_of(flow, {at(4)});
    // Two bytes at most: there is no hole within reach either.
    CHECK(plan.sites.empty());
    REQUIRE(plan.refused.size() == 1);
    CHECK(plan.refused[0].reason.find(target_names(kind)) != std::string::npos);
  }
}

TEST_CASE("a target inside an instruction counts", "[sled]") {
  const FunctionFlow flow =
      flow_of(kPlanAt, kPlainCode, {{2, kTargetForeign}, {4, kTargetSite}, {6, kTargetForeign}});
  CHECK(plan_of(flow, {at(4)}).sites.empty());
}

TEST_CASE("no branch is aimed anew where a target lies inside it", "[sled]") {
  // call 0x2000; nop; xor %eax,%eax, to which the branch leads; xor %ecx,%ecx; jne with 32 bits;
  // ret
  const Bytes code = bytes_of({0xe8, 0xfb, 0x0f, 0x00, 0x00, 0x90, 0x31, 0xc0, 0x31, 0xc9, 0x0f,
                               0x85, 0xf6, 0xff, 0xff, 0xff, 0xc3});
  const FunctionFlow flow = flow_of(kPlanAt, code, {{5, kTargetSite}, {6, kTargetBranch}});
  CHECK(plan_of(flow, {at(5)}).sites.size() == 1);
  const FunctionFlow inside =
      flow_of(kPlanAt, code, {{5, kTargetSite}, {6, kTargetBranch}, {13, kTargetWord}});
  CHECK(plan_of(inside, {at(5)}).sites.empty());
}

TEST_CASE("no run begins in filler that nothing reaches", "[sled]") {
  // ret; nopl 0x0(%rax); clc; nop; jmp 0x100a; clc; ret: no hole for a hop
  const Bytes code = bytes_of({0xc3, 0x0f, 0x1f, 0x40, 0x00, 0xf8, 0x90, 0xeb, 0x01, 0xf8, 0xc3});
  const FunctionFlow flow = flow_of(kPlanAt, code, {{6, kTargetSite}, {10, kTargetBranch}});
  CHECK(plan_of(flow, {at(6)}).sites.empty());
  // Where something reaches it, it is code.
  const FunctionFlow reached =
      flow_of(kPlanAt, code, {{1, kTargetBranch}, {6, kTargetSite}, {10, kTargetBranch}});
  const SledPlan plan = plan_of(reached, {at(6)});
  REQUIRE(plan.patches.size() == 1);
  CHECK(plan.patches[0].at == at(1));
}

TEST_CASE("a call behind the site goes through the stub", "[sled]") {
  // nop; call 0x2000; ret
  const Bytes code = bytes_of({0x90, 0xe8, 0xfa, 0x0f, 0x00, 0x00, 0xc3});
  const FunctionFlow flow = flow_of(kPlanAt, code, {});
  const SledPlan plan = plan_of(flow, {at(0)});
  REQUIRE(plan.sites.size() == 1);
  CHECK(plan.sites[0].tactic == Tactic::call_target);
  CHECK(plan.stubs[0].lower == 8);
  CHECK(plan.stubs[0].resume == VirtAddr{0x2000});
  CHECK(plan.patches[0].at == at(2));
  CHECK(plan.patches[0].size == Size{4});

  SECTION("not where others come to the call") {
    const FunctionFlow shared = flow_of(kPlanAt, code, {{1, kTargetBranch}});
    CHECK(plan_of(shared, {at(0)}).sites.empty());
  }
  SECTION("not where the arguments cannot follow") {
    SledRules rules = easy_rules();
    rules.arguments_fit = [](VirtAddr, std::int64_t lower) { return lower == 0; };
    CHECK(plan_of(flow, {at(0)}, std::move(rules)).sites.empty());
  }
}

TEST_CASE("a jump behind the site goes to the stub", "[sled]") {
  // nop; jmp 0x2000
  const FunctionFlow flow = flow_of(kPlanAt, bytes_of({0x90, 0xe9, 0xfa, 0x0f, 0x00, 0x00}), {});
  const SledPlan plan = plan_of(flow, {at(0)});
  REQUIRE(plan.sites.size() == 1);
  CHECK(plan.sites[0].tactic == Tactic::jump_target);
  CHECK(plan.stubs[0].lower == 0);
  CHECK(plan.stubs[0].resume == VirtAddr{0x2000});
}

TEST_CASE("padding behind a block completes a window", "[sled]") {
  // xor %eax,%eax; nop; ret; nopw 0(%rax,%rax,1)
  const Bytes code =
      bytes_of({0x31, 0xc0, 0x90, 0xc3, 0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00});
  const FunctionFlow flow = flow_of(kPlanAt, code, {{2, kTargetBranch}}, 9);
  const SledPlan plan = plan_of(flow, {at(2)});
  REQUIRE(plan.sites.size() == 1);
  CHECK(plan.sites[0].tactic == Tactic::displace);
  CHECK(plan.patches[0].at == at(2));
  CHECK(plan.patches[0].size == Size{11});
  CHECK(instructions_of(plan.stubs[0]) == std::vector<std::uint64_t>{3});
  CHECK_FALSE(plan.stubs[0].resume);

  SECTION("not padding that something points to") {
    const FunctionFlow reached =
        flow_of(kPlanAt, code, {{2, kTargetBranch}, {4, kTargetSymbol}}, 9);
    CHECK(plan_of(reached, {at(2)}).sites.empty());
  }
}

TEST_CASE("a short window hops into padding nearby", "[sled]") {
  // nop; jmp 0x1000; ret; int3...: what follows the ret is dead. The nop stays.
  const Bytes dead = bytes_of({0x90, 0xeb, 0xfd, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc});
  const FunctionFlow hop = flow_of(kPlanAt, dead, {{0, kTargetBranch}, {3, kTargetBranch}}, 6);
  const SledPlan hopped = plan_of(hop, {at(0)});
  REQUIRE(hopped.sites.size() == 1);
  CHECK(hopped.sites[0].tactic == Tactic::hop);
  REQUIRE(hopped.patches.size() == 2);
  CHECK(hopped.patches[0].form == Patch::Form::hop);
  CHECK(hopped.patches[0].at == at(1));
  CHECK(hopped.patches[0].size == Size{2});
  CHECK(hopped.patches[0].hole == at(4));
  CHECK(hopped.patches[1].form == Patch::Form::jump);
  CHECK(hopped.patches[1].at == at(4));

  SECTION("not where an unwinder finds another row in the hole") {
    SledRules rules = easy_rules();
    rules.same_row = [](VirtAddr, VirtAddr hole) { return hole < at(4); };
    CHECK(plan_of(hop, {at(0)}, std::move(rules)).sites.empty());
  }
}

TEST_CASE("a jump that a breakpoint would break stands later in the run", "[sled]") {
  // nop; test %rbx,%rbx; mov 8(%rbx),%eax; mov $1,%ecx; ret
  const Bytes code = bytes_of({0x90, 0x48, 0x85, 0xdb, 0x8b, 0x43, 0x08, 0xb9, 1, 0, 0, 0, 0xc3});
  const FunctionFlow flow = flow_of(kPlanAt, code, {{0, kTargetBranch}});
  const SledPlan plan = plan_of(flow, {at(0)});
  REQUIRE(plan.sites.size() == 1);
  CHECK(plan.sites[0].tactic == Tactic::displace);
  REQUIRE(plan.patches.size() == 4);
  for (const std::size_t i : {0U, 1U, 2U}) CHECK(plan.patches[i].form == Patch::Form::nops);
  CHECK(plan.patches[1].at == at(1));
  CHECK(plan.patches[1].size == Size{3});
  CHECK(plan.patches[3].at == at(7));
  CHECK(plan.patches[3].boundaries == 0);
  CHECK(instructions_of(plan.stubs[0]) == std::vector<std::uint64_t>{1, 4, 7});

  SECTION("not where the nops have other rows") {
    SledRules rules = easy_rules();
    rules.same_row = [](VirtAddr, VirtAddr later) { return later != at(4); };
    const SledPlan other = plan_of(flow, {at(0)}, std::move(rules));
    REQUIRE(other.patches.size() == 1);
    CHECK(other.patches[0].at == at(0));
  }
}

TEST_CASE("a short window hops over a neighbour's run", "[sled]") {
  // mov $1,%eax; mov $2,%ecx; ret | nop; jmp 0x1000 | ret
  const Bytes code = bytes_of({0xb8, 1, 0, 0, 0, 0xb9, 2, 0, 0, 0, 0xc3, 0x90, 0xeb, 0xf2, 0xc3});
  const FunctionFlow flow = flow_of(kPlanAt, code, {{11, kTargetBranch}, {14, kTargetBranch}});
  const SledPlan plan = plan_of(flow, {at(11)});
  REQUIRE(plan.sites.size() == 1);
  CHECK(plan.sites[0].tactic == Tactic::hop);
  REQUIRE(plan.patches.size() == 3);
  CHECK(plan.patches[0].at == at(0));
  CHECK(plan.patches[0].size == Size{5});
  CHECK(plan.patches[1].at == at(5));
  CHECK(plan.patches[2].hole == at(5));
  CHECK(plan.stubs.size() == 2);
}

TEST_CASE("nops that are long enough hold the sled themselves", "[sled]") {
  // nop; nopw %cs:0(%rax,%rax,1): what libbpf's usdt.h emits; ret
  const Bytes combo =
      bytes_of({0x90, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00, 0xc3});
  const SledPlan plan = plan_of(flow_of(kPlanAt, combo, {}), {at(0)});
  REQUIRE(plan.sites.size() == 1);
  CHECK(plan.sites[0].tactic == Tactic::in_place);
  CHECK(plan.patches[0].size == Size{11});

  // Across a page's end the kernel does not take it.
  const VirtAddr late{0x1ff6};
  SledPlanner planner(easy_rules());
  planner.add(flow_of(late, combo, {}), std::vector{late});
  const SledPlan moved = std::move(planner).finish();
  REQUIRE(moved.sites.size() == 1);
  CHECK(moved.sites[0].tactic == Tactic::displace);

  // nopl 0(%rax,%rax,1); ret: a nop5 stays, unless the red zone is in use.
  const Bytes nop5 = bytes_of({0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3});
  const FunctionFlow flow = flow_of(kPlanAt, nop5, {});
  CHECK(plan_of(flow, {at(0)}, easy_rules(SledKind::nop5)).sites.at(0).tactic == Tactic::in_place);
  SledRules guarded = easy_rules(SledKind::nop5);
  guarded.needs_guard = [](const FunctionFlow&, VirtAddr) { return true; };
  const SledPlan with_guard = plan_of(flow, {at(0)}, std::move(guarded));
  REQUIRE(with_guard.sites.size() == 1);
  CHECK(with_guard.sites[0].tactic == Tactic::displace);
  CHECK(with_guard.stubs[0].steps[0].guarded);
}

TEST_CASE("two sites next to each other share a stub", "[sled]") {
  // nop; nop; mov %edi,%eax; xor %ecx,%ecx; ret
  const Bytes code = bytes_of({0x90, 0x90, 0x89, 0xf8, 0x31, 0xc9, 0xc3});
  const FunctionFlow flow = flow_of(kPlanAt, code, {{0, kTargetSite}, {1, kTargetSite}});
  const SledPlan plan = plan_of(flow, {at(0), at(1)});
  REQUIRE(plan.sites.size() == 2);
  CHECK(plan.stubs.size() == 1);
  CHECK(plan.stubs[0].steps[0].sled == at(0));
  CHECK(plan.stubs[0].steps[1].sled == at(1));
  CHECK(plan.refused.empty());

  // One that gets no sled stays where tracers find it.
  const SledPlan one = plan_of(flow, {at(0)});
  CHECK(one.sites.empty());
  REQUIRE(one.refused.size() == 1);
  CHECK(one.refused[0].reason == "another probe in the window");
}

TEST_CASE("what is not understood is left alone", "[sled]") {
  FunctionFlow flow = flow_of(kPlanAt, kPlainCode, {{4, kTargetSite}});
  flow.complete = false;
  flow.why_incomplete = "indirect jump at 0x1002 that was not understood";
  const SledPlan plan = plan_of(flow, {at(4)});
  CHECK(plan.sites.empty());
  REQUIRE(plan.refused.size() == 1);
  CHECK(plan.refused[0].reason == "control flow not understood");
  CHECK(plan.refused[0].detail == flow.why_incomplete);

  // A function of two bytes at the end of .text.
  const SledPlan tiny = plan_of(flow_of(kPlanAt, bytes_of({0x90, 0xc3}), {}), {at(0)});
  REQUIRE(tiny.refused.size() == 1);
  CHECK(tiny.refused[0].reason == "too few bytes");
}

TEST_CASE("windows of neighbouring sites do not overlap", "[sled]") {
  // nop; push %rax; nop; pop %rax; mov $1,%eax; ret
  const Bytes code = bytes_of({0x90, 0x50, 0x90, 0x58, 0xb8, 1, 0, 0, 0, 0xc3});
  const FunctionFlow flow = flow_of(kPlanAt, code, {{0, kTargetSite}, {2, kTargetSite}});
  const SledPlan plan = plan_of(flow, {at(0), at(2)});
  CHECK(plan.sites.size() == 2);
  for (std::size_t i = 1; i < plan.patches.size(); ++i) {
    const Patch& before = plan.patches[i - 1];
    CHECK(before.at.value + before.size.value <= plan.patches[i].at.value);
  }
}

TEST_CASE("branches to a target in the window are aimed at the stub", "[sled]") {
  // call *%rax; nop; 3: mov %eax,%ecx; xor %edx,%edx; ret; ...: je 3 (near); ret
  const Bytes near = bytes_of({0xff, 0xd0, 0x90, 0x89, 0xc1, 0x31, 0xd2, 0xc3,  //
                               0x0f, 0x84, 0xf5, 0xff, 0xff, 0xff, 0xc3});
  const FunctionFlow flow = flow_of(kPlanAt, near, {{3, kTargetBranch}, {8, kTargetSymbol}});
  const SledPlan plan = plan_of(flow, {at(2)});
  REQUIRE(plan.sites.size() == 1);
  CHECK(plan.sites[0].tactic == Tactic::displace);
  REQUIRE(plan.patches.size() == 2);
  CHECK(plan.patches[0].at == at(2));
  CHECK(plan.patches[0].size == Size{5});
  CHECK(plan.patches[1].form == Patch::Form::relative);
  CHECK(plan.patches[1].at == at(10));
  CHECK(plan.patches[1].step == 1);

  // je 3 (short): the run that holds the branch moves too, and its copy is aimed.
  const Bytes short_branch = bytes_of({0xff, 0xd0, 0x90, 0x89, 0xc1, 0x31, 0xd2, 0xc3,  //
                                       0x85, 0xff, 0x74, 0xf7, 0x31, 0xc0, 0xc3});
  const FunctionFlow near_flow =
      flow_of(kPlanAt, short_branch, {{3, kTargetBranch}, {8, kTargetSymbol}});
  const SledPlan moved = plan_of(near_flow, {at(2)});
  REQUIRE(moved.sites.size() == 1);
  REQUIRE(moved.stubs.size() == 2);
  REQUIRE(moved.patches.size() == 2);
  CHECK(moved.patches[1].form == Patch::Form::jump);
  CHECK(moved.patches[1].stub == 1);
  std::size_t aimed = 0;
  for (const StubStep& step : moved.stubs[1].steps) {
    if (!step.aim) continue;
    ++aimed;
    CHECK(step.instruction.address == at(10));
    CHECK(step.aim->stub == 0);
    CHECK(step.aim->step == 1);
  }
  CHECK(aimed == 1);

  // Not where anything but branches of the function leads to it.
  const FunctionFlow seen =
      flow_of(kPlanAt, near, {{3, kTargetBranch | kTargetForeign}, {8, kTargetSymbol}});
  CHECK(plan_of(seen, {at(2)}).sites.empty());
}

TEST_CASE("a neighbour that is hopped over keeps its own targets and branches", "[sled]") {
  // mov $1,%eax; 5: mov $2,%ecx; ret; 11: nop; 12: mov %eax,%ecx; call *%rax; ret;
  // 17: je 12; 23: je 5; ret
  const Bytes code = bytes_of({0xb8, 1,    0,    0,    0,    0xb9, 2,    0, 0, 0,  //
                               0xc3, 0x90, 0x89, 0xc1, 0xff, 0xd0, 0xc3,           //
                               0x0f, 0x84, 0xf5, 0xff, 0xff, 0xff,                 //
                               0x0f, 0x84, 0xe8, 0xff, 0xff, 0xff, 0xc3});
  const auto site = std::pair<int, TargetKinds>{11, kTargetSymbol};
  const auto behind = std::pair<int, TargetKinds>{12, kTargetBranch};
  const auto with_target = flow_of(kPlanAt, code, {{5, kTargetBranch}, site, behind});
  // Neither over 5, to which a branch still leads, nor over the branch to 12, which is aimed.
  CHECK(plan_of(with_target, {at(11)}).sites.empty());

  const auto without = flow_of(kPlanAt, code, {site, behind});
  const SledPlan plan = plan_of(without, {at(11)});
  REQUIRE(plan.sites.size() == 1);
  CHECK(plan.sites[0].tactic == Tactic::hop);
  for (std::size_t i = 1; i < plan.patches.size(); ++i) {
    const Patch& before = plan.patches[i - 1];
    CHECK(before.at.value + before.size.value <= plan.patches[i].at.value);
  }
}
