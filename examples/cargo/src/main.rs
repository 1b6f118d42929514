//! Probes without a dependency: what sys/sdt.h writes, written with `asm!`.

/// A probe `app:NAME` with one 64-bit argument in a register.
macro_rules! probe {
    ($name:literal, $argument:expr) => {
        unsafe {
            core::arch::asm!(
                "990: nop",
                ".pushsection .note.stapsdt,\"?\",\"note\"",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                ".8byte 0",
                ".asciz \"app\"",
                concat!(".asciz \"", $name, "\""),
                ".asciz \"8@{argument}\"",
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base, 1",
                ".popsection",
                ".endif",
                argument = in(reg) $argument as u64,
                options(att_syntax, nostack, preserves_flags)
            )
        }
    };
}

/// Nobody calls it, and `#[no_mangle]` keeps it until the linker drops it.
#[no_mangle]
#[inline(never)]
extern "C" fn unused(n: u64) {
    probe!("unused", n);
}

fn main() {
    let count = std::env::args().count();
    probe!("start", count);
    println!("done");
}
