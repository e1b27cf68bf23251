//! The lines of a `chiscsi.conf`: blocks that begin with `global:` or `target:`, and `key=value` in them.
//!
//! A line that begins with `#` is a comment; a `#` elsewhere belongs to the value.

use crate::key::{self, BlockKind, Key};
use config::diagnostic::{Located, Place, Sink, SourceText};

/// Most blocks of a file.
const BLOCKS_MAX: usize = 1024;

/// A block.
#[derive(Debug)]
pub struct Block {
    /// Its kind.
    pub kind: BlockKind,
    /// Where it begins.
    pub at: Place,
    /// What stands in it, in order.
    pub entries: Vec<Setting>,
}

/// `key=value`, of a key that is known.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Which key.
    pub key: Key,
    /// What stands behind `=`, without blanks around it.
    pub value: Located<String>,
    /// Its line, from 1.
    pub line: usize,
}

/// Reads the text. What is wrong goes to `sink`, and is left out.
pub fn parse_blocks(text: &SourceText, sink: &Sink) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut offset = 0;
    for (index, raw) in text.text.split_inclusive('\n').enumerate() {
        let begin = offset;
        offset += raw.len();
        let written = raw.trim();
        if written.is_empty() || written.starts_with('#') {
            continue;
        }
        let first = begin + (raw.len() - raw.trim_start().len());
        let at = text.place_of_span(first..first + written.len());
        if let Some(kind) = block_heading(written) {
            if blocks.len() == BLOCKS_MAX {
                sink.note_error(&at, format!("more than {BLOCKS_MAX} blocks"));
                break;
            }
            begin_block(&mut blocks, kind, at, sink);
            continue;
        }
        let Some((name, value)) = written.split_once('=') else {
            let why = "expected key=value, or the beginning of a block, \"global:\" or \"target:\"";
            sink.note_error(&at, why);
            continue;
        };
        let Some(block) = blocks.last_mut() else {
            sink.note_error(&at, "is before the first block; a file begins with \"global:\" or \"target:\"");
            continue;
        };
        match key::find_key(name.trim_end(), block.kind) {
            Ok(key) => {
                let value_at = first + name.len() + 1 + (value.len() - value.trim_start().len());
                let value = Located::new(value.trim().to_owned(), text.place_of_span(value_at..value_at));
                block.entries.push(Setting { key, value, line: index + 1 });
            }
            Err(why) => sink.note_error(&at, why),
        }
    }
    if !blocks.iter().any(|block| block.kind == BlockKind::Target) && sink.is_clean() {
        sink.note_error(&text.place_of_span(0..0), "there is no \"target:\" in it, so nothing to serve");
    }
    blocks
}

fn block_heading(written: &str) -> Option<BlockKind> {
    match written.strip_suffix(':')?.trim_end() {
        "global" => Some(BlockKind::Global),
        "target" => Some(BlockKind::Target),
        _ => None,
    }
}

fn begin_block(blocks: &mut Vec<Block>, kind: BlockKind, at: Place, sink: &Sink) {
    if kind == BlockKind::Global
        && let Some(first) = blocks.iter().find(|block| block.kind == BlockKind::Global)
    {
        sink.note_error(&at, format!("there can be only one \"global:\"; the first is at {}", first.at));
    }
    blocks.push(Block { kind, at, entries: Vec::new() });
}
