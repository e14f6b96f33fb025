//! Generates Rust from every file under `proto/`, with protox: no `protoc` is needed.

use prost::Message;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Region to region only: not part of what the public port describes of itself.
const PRIVATE_PACKAGE: &str = "apportion.sync.v1";

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();

    let descriptors = protox::compile(&files, [&root])?;

    let mut public = descriptors.clone();
    public.file.retain(|file| file.package() != PRIVATE_PACKAGE);
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    fs::write(out.join("public.bin"), public.encode_to_vec())?;

    tonic_prost_build::configure()
        .btree_map(".")
        .include_file("generated.rs")
        .compile_fds(descriptors)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            println!("cargo:rerun-if-changed={}", path.display());
            collect(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|extension| extension == "proto")
        {
            files.push(path);
        }
    }
    Ok(())
}
