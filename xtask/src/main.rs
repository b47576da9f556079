//! What contributors and CI run.

mod servers;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("servers") => servers::main(arguments.collect()),
        _ => {
            eprintln!("usage: cargo xtask servers …");
            ExitCode::from(64)
        }
    }
}
