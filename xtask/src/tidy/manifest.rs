//! The manifests: licences of published crates, features, and the compiler that they really need.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{backends, features, files, read};

/// Only the features `fence-sqlx…` need it, and their page says which Rust they need.
const NEEDS_NEWER_RUST: &str = "sqlx";

pub(super) fn faults(root: &Path) -> Vec<String> {
    let mut faults = licence_faults(root);
    faults.extend(feature_faults(root));
    faults.extend(compiler_faults(root));
    faults
}

/// A crate is published without what lies above its folder, and its licences ask for their text.
fn licence_faults(root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    for path in files(root).iter().filter(|path| path.ends_with("Cargo.toml")) {
        let Some(folder) = path.parent().filter(|folder| folder.starts_with(root.join("crates")))
        else {
            continue;
        };
        let published = !read(path).contains("publish = false");
        for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
            if published && read(&folder.join(name)) != read(&root.join(name)) {
                faults.push(format!("{}: is not the one above", folder.join(name).display()));
            }
        }
    }
    faults
}

/// Every backend has its feature, and no feature is weak.
fn feature_faults(root: &Path) -> Vec<String> {
    let known = features();
    let missing = backends(root).into_iter().filter(|row| !known.contains(&row.feature));
    let mut faults: Vec<String> = missing
        .map(|row| format!("backend `{}` has no cargo feature `{}`", row.module, row.feature))
        .collect();
    if read(&root.join("crates/tenure/Cargo.toml")).contains("?/") {
        faults.push("crates/tenure/Cargo.toml: a weak feature (`?/`)".to_owned());
    }
    faults
}

/// No dependency of a published crate needs a newer compiler than the workspace says. What the code
/// itself needs is held by clippy's `incompatible_msrv`.
fn compiler_faults(root: &Path) -> Vec<String> {
    let manifest = read(&root.join("Cargo.toml"));
    let ours = manifest.split("rust-version = \"").nth(1).and_then(|rest| rest.split('"').next());
    let Some(ours) = ours.and_then(version) else {
        return vec!["Cargo.toml: has no `rust-version`".to_owned()];
    };
    let Some(metadata) = metadata(root) else {
        return vec![
            "`cargo metadata` failed: the lock file is out of date, or a package is missing"
                .to_owned(),
        ];
    };
    let needs = published_packages(&metadata).into_iter().filter_map(|package| {
        let needed = version(package["rust_version"].as_str()?)?;
        if package["name"].as_str()?.starts_with(NEEDS_NEWER_RUST) {
            return None;
        }
        (needed > ours).then(|| {
            let text = |field: &str| package[field].as_str().unwrap_or_default();
            let package = format!("{} {}", text("name"), text("version"));
            let shown = |(major, minor): (u32, u32)| format!("{major}.{minor}");
            format!("{package} needs Rust {}, the workspace says {}", shown(needed), shown(ours))
        })
    });
    needs.collect()
}

fn metadata(root: &Path) -> Option<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--locked", "--all-features"]);
    // Of what other systems need, nothing is built here, and it may not be on this machine.
    command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
    let output = command.current_dir(root).output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

/// The packages that a published crate is built from.
fn published_packages(metadata: &Value) -> Vec<&Value> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let by_id: BTreeMap<&str, &Value> =
        packages.iter().filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .filter_map(|node| Some((node["id"].as_str()?.to_owned(), node)))
        .collect();
    let own = |package: &&Value| package["source"].is_null() && package["publish"].is_null();
    let mut open: Vec<String> = packages
        .iter()
        .filter(own)
        .filter_map(|package| package["id"].as_str().map(str::to_owned))
        .collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let Some(node) = nodes.get(&id) else { continue };
        for dependency in list(&node["deps"]) {
            let kinds = list(&dependency["dep_kinds"]);
            let built = kinds.iter().any(|kind| kind["kind"].as_str() != Some("dev"));
            if let Some(id) = dependency["pkg"].as_str().filter(|_| built) {
                open.push(id.to_owned());
            }
        }
    }
    seen.iter().filter_map(|id| by_id.get(id.as_str()).copied()).collect()
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next().unwrap_or("0").parse().ok()?;
    Some((major, minor))
}
