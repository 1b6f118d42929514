// Calls the functions of unwind_test.S; at each stop the signal handler prints the frames that the
// unwinder finds, or throws through them.
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <unwind.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

extern "C" {
long push_inside(long);
long call_target(long);
long guarded_leaf(long);
long frame_pointer(long);
}

namespace {

bool throwing;
bool use_backtrace;
bool quiet;
char* stack;  // of main()

// The stub stands for its function: NAME.sled is NAME.
void print_name(void* pc) {
  Dl_info info{};
  const bool known = dladdr(pc, &info) != 0 && info.dli_sname != nullptr;
  std::string name = known ? info.dli_sname : "?";
  if (name.ends_with(".sled")) name.resize(name.size() - 5);
  std::printf(" %s", name.c_str());
}

// `outside`: whether the frame is outside the interrupted one, whose own stack pointer may differ.
_Unwind_Reason_Code print_frame(_Unwind_Context* context, void* outside) {
  int before = 0;
  auto* pc = reinterpret_cast<char*>(_Unwind_GetIPInfo(context, &before));
  print_name(before != 0 ? pc : pc - 1);
  bool& print_cfa = *static_cast<bool*>(outside);
  // A wrong row may still give the right name, but not the place of the frame.
  if (print_cfa)
    std::printf("@%ld", static_cast<long>(_Unwind_GetCFA(context)) - reinterpret_cast<long>(stack));
  print_cfa = print_cfa || before != 0;
  return _URC_NO_REASON;
}

void print_frames(const char* what) {
  if (quiet) return;
  std::printf("%s:", what);
  if (use_backtrace) {
    void* frames[64];
    const int count = backtrace(frames, 64);
    for (int i = 0; i < count; ++i) print_name(frames[i]);
  } else {
    bool outside = false;
    _Unwind_Backtrace(print_frame, &outside);
  }
  std::printf("\n");
}

void stop(int) {
  if (throwing) throw 7;
  print_frames("stop");
}

}  // namespace

extern "C" __attribute__((noinline)) long called(long value) {
  print_frames("called");
  if (value == 2) throw 9;
  return value;
}

extern "C" __attribute__((noinline)) long run(long (*function)(long), long value) {
  try {
    return function(value) + 100;
  } catch (int thrown) {
    return thrown;
  }
}

int main(int, char** argv) {
  const std::string mode = argv[1];
  stack = reinterpret_cast<char*>(&argv);
  use_backtrace = mode == "backtrace";
  quiet = mode == "quiet";
  struct sigaction action {};
  action.sa_handler = stop;
  action.sa_flags = SA_NODEFER;
  // A debugger sees every stop itself.
  if (mode != "gdb") sigaction(SIGTRAP, &action, nullptr);
  for (const bool through : {false, true}) {
    throwing = through;
    for (const long value : {1L, 2L})
      for (auto* function : {push_inside, call_target, guarded_leaf, frame_pointer})
        std::printf("= %ld\n", run(function, value));
  }
}
