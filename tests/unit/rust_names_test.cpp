// Names of Rust: what they mean is what c++filt of binutils 2.40 says of names that rustc 1.9x
// wrote, without the hashes.
#include "libprobe/code/rust_names.hpp"

#include "catch.hpp"

namespace reprobe::test {

TEST_CASE("names of Rust, both formats") {
  const auto [mangled, readable] = GENERATE(table<std::string, std::string>({
      {"_ZN1p4main17hdf687cbd902a33eaE", "p::main"},
      {"_ZN42_$LT$$RF$T$u20$as$u20$core..fmt..Debug$GT$3fmt17h47d34f7f5b529362E",
       "<&T as core::fmt::Debug>::fmt"},
      {"_ZN3std2rt10lang_start28_$u7b$$u7b$closure$u7d$$u7d$17h91649477ffa4e3a1E.llvm.17",
       "std::rt::lang_start::{{closure}}"},
      {"_RINvCs12jkoC9p3aE_1p7genericllEB2_", "p::generic::<i32, i32>"},
      {"_RINvMNtCsgEmfK2I1SDS_4core3stre18trim_start_matchesReECsgY6Mt91CT9J_14rustc_demangle",
       "<str>::trim_start_matches::<&str>"},
      {"_RINvMNtCsgEmfK2I1SDS_4core5sliceSh11copy_withinINtNtNtB5_3ops5range14RangeInclusivejEECs"
       "fEOYDRpO4Ta_11miniz_oxide",
       "<[u8]>::copy_within::<core::ops::range::RangeInclusive<usize>>"},
      {"_RNCINvNtNtCsi4IsKQVxMg0_3std6thread7current17with_current_nameNCNCNvNtB8_9panicking12defa"
       "ult_hook00uE0B8_",
       "std::thread::current::with_current_name::<std::panicking::default_hook::{closure#0}::"
       "{closure#0}, ()>::{closure#0}"},
  }));
  CAPTURE(mangled);
  CHECK(demangle_rust(mangled) == readable);
}

TEST_CASE("names that are not of Rust, or not understood, stay") {
  const std::string name = GENERATE(as<std::string>(), "", "main", "_ZN3foo3barEv", "_ZN3foo3barE",
                                    "_ZN", "_ZN4main17hdf687cbd902a33e", "_R", "_RNv", "_RNvC1",
                                    "_RNvCs_", "_RNvC9999a", "_RB_", "_RNvB0_1a", "_RIB_E",
                                    // dyn
                                    "_RINvNtCs8NwYtU1Mohg_4core3ptr9drop_glueDNtC1a1bEL_E");
  CAPTURE(name);
  CHECK_FALSE(demangle_rust(name));
}

TEST_CASE("a name that repeats itself is not followed for ever") {
  // Each tuple is twice the one before it.
  std::string name = "_RINvC1a1bTyyE";
  for (int i = 0; i < 60; ++i) name += "TB7_B7_E";
  CHECK_FALSE(demangle_rust(name + std::string(5000, 'T')));
  std::string deep = "_RINvC1a1b";
  for (int i = 0; i < 5000; ++i) deep += 'S';
  CHECK_FALSE(demangle_rust(deep + "yE"));
}

}  // namespace reprobe::test
