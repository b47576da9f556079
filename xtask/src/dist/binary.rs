//! What a program needs of the machine that it is installed on, read from its ELF file: the names
//! and tags of packages promise no more than that.

use std::fmt;
use std::process::Command;

/// The processor, by its names in the ELF header, Rust, Node and Debian.
pub(super) struct Machine {
    elf: u16,
    pub(super) rust: &'static str,
    pub(super) node: &'static str,
    pub(super) debian: &'static str,
}

const MACHINES: &[Machine] = &[
    Machine { elf: 62, rust: "x86_64", node: "x64", debian: "amd64" },
    Machine { elf: 183, rust: "aarch64", node: "arm64", debian: "arm64" },
];

/// The C library that has to be there. A version is the minor one: 36 is glibc 2.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Libc {
    /// Static, and loads nothing later.
    None,
    /// Static, but glibc looks host names up with what `/etc/nsswitch.conf` names, and loads those
    /// modules from the machine: they have to be of the same glibc.
    StaticGlibc(u32),
    /// Dynamic, with symbols of this version.
    Glibc(u32),
}

pub(super) struct Needs {
    pub(super) machine: &'static Machine,
    pub(super) libc: Libc,
}

impl Needs {
    /// What this ELF file needs.
    pub(super) fn of(program: &[u8]) -> Result<Needs, String> {
        if program.get(..6) != Some(b"\x7fELF\x02\x01") {
            return Err("is no program for Linux (64 bits, little endian)".to_owned());
        }
        let kind = number(program, 18, 2)?;
        let machine = MACHINES.iter().find(|machine| u64::from(machine.elf) == kind);
        let machine = machine.ok_or(format!("is for a processor (ELF {kind}) without packages"))?;
        let libc = match interpreter(program)? {
            Some(loader) if contains(loader, b"ld-musl") => {
                return Err("needs musl as a shared library: link it statically".to_owned());
            }
            Some(_) => Libc::Glibc(newest_symbol(program).ok_or("names no version of glibc")?),
            None if contains(program, b"/etc/nsswitch.conf") => Libc::StaticGlibc(glibc_here()?),
            None => Libc::None,
        };
        Ok(Needs { machine, libc })
    }

    /// The platforms of a wheel, by PEP 600 and 656.
    ///
    /// A program without a C library runs wherever the kernel does, so that it gets the oldest tags
    /// of both families that pip of today knows. One of glibc gets its own version and not musl's,
    /// also if it is static: see [`Libc::StaticGlibc`].
    pub(super) fn wheel_platform(&self) -> String {
        let cpu = self.machine.rust;
        match self.libc {
            Libc::None => {
                format!("manylinux_2_17_{cpu}.manylinux2014_{cpu}.musllinux_1_1_{cpu}")
            }
            Libc::StaticGlibc(minor) | Libc::Glibc(minor) => format!("manylinux_2_{minor}_{cpu}"),
        }
    }

    /// As the end of an archive's name.
    pub(super) fn suffix(&self) -> String {
        let cpu = self.machine.rust;
        match self.libc {
            Libc::None => format!("linux-{cpu}-static"),
            Libc::StaticGlibc(minor) => format!("linux-{cpu}-static-glibc2.{minor}"),
            Libc::Glibc(minor) => format!("linux-{cpu}-glibc2.{minor}"),
        }
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.machine.rust)?;
        match self.libc {
            Libc::None => f.write_str("static: needs no C library"),
            Libc::StaticGlibc(minor) => write!(
                f,
                "static, with glibc 2.{minor} inside (not musl): the look-up of host names may \
                 load modules of the machine, which have to be of the same glibc"
            ),
            Libc::Glibc(minor) => write!(f, "dynamic: needs glibc 2.{minor} or newer"),
        }
    }
}

/// The loader that the program asks for; a static program asks for none.
fn interpreter(program: &[u8]) -> Result<Option<&[u8]>, String> {
    let (table, size) = (number(program, 32, 8)?, number(program, 54, 2)?);
    for index in 0..number(program, 56, 2)? {
        let header = table.saturating_add(index * size);
        if number(program, header, 4)? == 3 {
            let start = number(program, header.saturating_add(8), 8)?;
            let length = number(program, header.saturating_add(32), 8)?;
            return bytes(program, start, length).map(Some);
        }
    }
    Ok(None)
}

fn bytes(program: &[u8], at: u64, length: u64) -> Result<&[u8], String> {
    let range = usize::try_from(at).ok().zip(usize::try_from(at.saturating_add(length)).ok());
    let bytes = range.and_then(|(start, end)| program.get(start..end));
    bytes.ok_or_else(|| "is cut off".to_owned())
}

fn number(program: &[u8], at: u64, length: u64) -> Result<u64, String> {
    let bytes = bytes(program, at, length)?;
    Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// The newest `GLIBC_2.N` among the names of versions. A text of the program that looks the same
/// could only make it newer than need be.
fn newest_symbol(program: &[u8]) -> Option<u32> {
    const MARK: &[u8] = b"GLIBC_2.";
    let marks = program.windows(MARK.len()).enumerate().filter(|(_, window)| *window == MARK);
    let minors = marks.filter_map(|(at, _)| {
        let digits = program[at + MARK.len()..].iter().take(3);
        let digits = digits.take_while(|byte| byte.is_ascii_digit()).map(|byte| char::from(*byte));
        digits.collect::<String>().parse().ok()
    });
    minors.max()
}

/// The glibc of this machine, which a static program does not say by itself.
fn glibc_here() -> Result<u32, String> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let output = output.map_err(|error| format!("has glibc inside; getconf: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let minor = text.trim().strip_prefix("glibc 2.").and_then(|minor| minor.parse().ok());
    minor.ok_or_else(|| {
        "has glibc inside, and this machine does not say of which version".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with one program header and this text behind it.
    fn elf(machine: u8, header: u8, text: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 120];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (file[18], file[32], file[54], file[56]) = (machine, 64, 56, 1);
        (file[64], file[72], file[96]) = (header, 120, u8::try_from(text.len()).expect("short"));
        file.extend(text);
        file
    }

    fn libc(file: &[u8]) -> Result<Libc, String> {
        Needs::of(file).map(|needs| needs.libc)
    }

    #[test]
    fn a_dynamic_program_needs_the_newest_version_that_it_names() {
        let text = b"/lib64/ld-linux-x86-64.so.2\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0";
        assert_eq!(libc(&elf(62, 3, text)), Ok(Libc::Glibc(34)));
    }

    #[test]
    fn only_a_program_without_glibc_is_for_musl_too() {
        let needs = Needs::of(&elf(183, 1, b"GLIBC_2.34")).map(|needs| needs.wheel_platform());
        let both = "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64";
        assert_eq!(needs.as_deref(), Ok(both));
        let inside = Needs { machine: &MACHINES[0], libc: Libc::StaticGlibc(36) };
        assert_eq!(inside.wheel_platform(), "manylinux_2_36_x86_64");
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(libc(b"#!/bin/sh").is_err());
        assert!(libc(&elf(62, 3, b"/lib/ld-musl-x86_64.so.1")).is_err());
        assert!(libc(&elf(40, 3, b"/lib/ld-linux.so.3")).is_err());
        let whole = elf(62, 3, b"/lib64/ld-linux-x86-64.so.2\0GLIBC_2.34\0");
        for length in 0..150 {
            assert!(libc(&whole[..length]).is_err(), "{length}");
        }
    }
}
