//! Copies that are ended while their data is in flight: by an abort, a reset of the unit, or a new login of
//! the initiator port that requested them.

use std::sync::Arc;
use std::time::Duration;

use backends::{FileBackend, FileDisk, FileFacts};
use iscsi::wire::TmfFunction;
use sim::SimRng;
use volume::DiskId;

use crate::command::{CommandKind, Flight, request};
use crate::fences::{self, BLOCKS, ask, log_in, read_all, run};
use crate::model::{COPIED, fill};
use testkit::target;

/// After the answer to what ended it nothing of a copy lands.
#[test]
fn nothing_of_a_copy_lands_after_its_end() {
    let mut partly = 0;
    for seed in 0..60 {
        let facts = FileFacts {
            offset_align: if seed % 2 == 0 { 512 } else { 4096 },
            ..FileFacts::new((2 * BLOCKS * 512) as u64)
        };
        let file = Arc::new(FileDisk::new(DiskId(1), &facts, 2).unwrap());
        let geometry = file.geometry();
        let make = move |shard| FileBackend::new(file.clone(), shard);
        let mut world = fences::world(seed, target::volume_specs(2, geometry, &[DiskId(1)], None, make));
        let mut keeper = log_in(&mut world, 1);
        let mut copier = log_in(&mut world, 2);
        let page: Vec<u8> = (0..BLOCKS).flat_map(|lba| fill(lba, COPIED)).collect();
        let behind = [0x2a, 0, 0, 0, 0, BLOCKS as u8, 0, 0, BLOCKS as u8, 0];
        assert_eq!(ask(&mut world, &mut keeper, &behind, &page, 0).status, 0);
        let kind = CommandKind::Copy { by: 1, page: 0 };
        let (cdb, list, _) = request(Flight { host: 0, kind, lba: 0, blocks: BLOCKS, began: 0 });
        let copy = copier.send_command(&mut world, 0, &cdb, &list, 0);
        let mut chance = SimRng::new(!seed);
        let until = world.now() + Duration::from_micros(chance.below(20_000));
        while world.step(until) {
            copier.poll(&mut world);
        }
        match seed % 3 {
            0 => {
                copier.send_task_management(&mut world, TmfFunction::ABORT_TASK, 0, copy);
                run(&mut world, &mut [&mut copier], |all| !all[0].managed.is_empty());
            }
            1 => {
                keeper.send_task_management(&mut world, TmfFunction::LOGICAL_UNIT_RESET, 0, u32::MAX);
                run(&mut world, &mut [&mut keeper], |all| !all[0].managed.is_empty());
                // TASK ABORTED, if it had not ended yet.
                run(&mut world, &mut [&mut copier], |all| all[0].ended.iter().any(|ended| ended.itt == copy));
            }
            _ => copier = log_in(&mut world, 2),
        }
        copier.forget_task(copy);
        // It hears of the reset.
        ask(&mut world, &mut keeper, &[0; 6], &[], 0);
        let first = read_all(&mut world, &mut keeper);
        for _ in 0..20 {
            world.run_for(Duration::from_millis(5));
            copier.poll(&mut world);
        }
        assert_eq!(read_all(&mut world, &mut keeper), first, "seed {seed}: part of a copy landed late");
        partly += usize::from(first.contains(&0) && first.contains(&COPIED));
    }
    assert!(partly > 10, "hardly any copy was on its way: {partly}");
}
