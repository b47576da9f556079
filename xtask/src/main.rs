//! What contributors and CI run. `cargo xtask test` runs everything.

mod dist;
mod servers;
mod site;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask COMMAND

  test [--quick]      everything: format, lints, docs, unit, doc, conformance and CLI tests, each
                      feature alone; --quick leaves out the builds of single features
  tidy                what no lint sees: file headers, forbidden words, documents that name code
  book                a site of all pages, with search, in target/book/site; installs mdBook there
  dist …              the program as packages, for tar, pip, npm and Debian, in target/packages
  servers …           get, start, stop and list the real servers that tests use
";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["test"] => test::run(test::Extent::Everything),
        ["test", "--quick"] => test::run(test::Extent::Quick),
        ["tidy"] => tidy::run(),
        ["book"] => site::run(),
        ["dist", ref rest @ ..] => dist::run(rest),
        ["servers", ..] => servers::main(arguments.split_off(1)),

        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{HELP}");
            ExitCode::from(64)
        }
    }
}
