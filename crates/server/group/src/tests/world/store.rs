//! Requests to the store on their way, and their replies: late, lost, or of unknown outcome.

use super::*;

impl World {
    pub(super) fn ask_store(&mut self, instance: InstanceId, ticket: StoreTicket, request: StoreRequest) {
        let delay = self.rng.below(MS / 2);
        // Whatever becomes of it, the client gives up.
        let timeout = Event::Input(instance, Input::Reply(ticket, StoreReply::Unknown));
        self.after(STORE_TIMEOUT, timeout);
        let mut silent = false;
        if self.rng.chance_permille(self.plan.unknown) && !self.quiet {
            self.checks.tally.unknown += 1;
            if self.rng.chance_permille(400) {
                return;
            }
            silent = true;
        }
        self.after(delay, Event::Send(instance, Sending::Store(ticket, request, silent)));
    }

    pub(super) fn send(&mut self, instance: InstanceId, sending: Sending) {
        let Some(gateway) = self.gateway_of(instance) else { return };
        if !self.runs(gateway) || self.gateways[gateway].store_cut {
            if let Some(process) = &mut self.gateways[gateway].process {
                process.unsent.push(sending);
            }
            return;
        }
        let late = self.rng.chance_permille(self.plan.late) && !self.quiet;
        let delay = if late { self.rng.below(ORPHAN) } else { self.rng.between(MS / 10, 2 * MS) };
        let map = self.cluster.client_map(instance);
        self.after(delay, Event::Arrive(instance, map, sending));
    }

    pub(super) fn arrive(&mut self, instance: InstanceId, map: usize, sending: Sending) {
        match sending {
            Sending::Io(io) => {
                let BlockIo { volume, lba, .. } = io;
                let operation = match io.value {
                    Some(value) => Operation::WriteBlock { volume, lba, value },
                    None => Operation::ReadBlock { volume, lba },
                };
                let outcome = self.cluster.execute(instance, map, &operation, |_| false);
                if outcome == Outcome::Fenced {
                    self.checks.tally.refused += 1;
                } else {
                    let group = GroupId(u32::from(volume.0[0]));
                    self.checks.block_executed(group, instance, &io);
                }
                let delay = self.rng.between(MS / 10, MS);
                self.after(delay, Event::Input(instance, Input::Io(io, outcome)));
            }
            Sending::Store(ticket, request, silent) => {
                let reply = self.carry_out(instance, map, request);
                if let Some(reply) = reply.filter(|_| !silent) {
                    let delay = self.rng.between(MS / 10, MS);
                    self.after(delay, Event::Input(instance, Input::Reply(ticket, reply)));
                }
            }
        }
    }

    pub(super) fn carry_out(
        &mut self,
        by: InstanceId,
        map: usize,
        request: StoreRequest,
    ) -> Option<StoreReply> {
        let operation = match request {
            StoreRequest::Read(object) => Operation::Read(object),
            StoreRequest::Swap { object, expected, value } => Operation::Swap { object, expected, value },
            StoreRequest::Lock(volume) => Operation::Lock(volume),
            StoreRequest::Unlock(volume) => Operation::Unlock(volume),
            StoreRequest::Notify(object) => {
                self.notify(object);
                return None;
            }
            StoreRequest::SpreadMap(volume) => {
                let done = self.cluster.spread(by, map, volume);
                return Some(if done { StoreReply::Done } else { StoreReply::Fenced });
            }
            // The monitors know the latest map.
            _ if self.cluster.is_barred(by) => return Some(StoreReply::Fenced),
            // It has left no addresses.
            StoreRequest::Blocklist { instance: STRANGER, .. } => return Some(StoreReply::Unknown),
            StoreRequest::Blocklist { instance, expiry } => {
                let map = self.cluster.blocklist(instance);
                self.after(expiry.as_nanos() as u64, Event::Expire(instance));
                return Some(StoreReply::Blocklisted(map));
            }
            StoreRequest::RemoveFromBlocklist(instance) => {
                self.cluster.remove_from_blocklist(instance);
                return Some(StoreReply::Done);
            }
            StoreRequest::AwaitMap(MapEpoch(map)) => {
                assert!(self.cluster.latest() as u64 >= map, "a map that does not exist is waited for");
                self.cluster.client_learns(by);
                return Some(StoreReply::Done);
            }
        };
        let running: Vec<InstanceId> = (0..self.gateways.len())
            .filter(|gateway| self.runs(*gateway))
            .filter_map(|gateway| self.instance_of(gateway))
            .collect();
        let before = match &operation {
            Operation::Swap { object: object @ ObjectName::Owner(_), .. } => self.owner_of(*object),
            _ => None,
        };
        let alive = |holder| holder == STRANGER || running.contains(&holder);
        let outcome = self.cluster.execute(by, map, &operation, alive);
        if let (Operation::Swap { object, value, .. }, Outcome::Swapped(_)) = (&operation, &outcome) {
            if let ObjectName::Owner(_) = object {
                let handed = before == Some(by);
                self.checks.tally.handovers += u64::from(handed);
                self.checks.tally.takeovers += u64::from(before.is_some() && !handed);
            }
            self.checks.swapped(self.now, *object, value);
        }
        Some(match outcome {
            Outcome::Contents(version, value) => StoreReply::Contents { version, value },
            Outcome::Swapped(version) => StoreReply::Swapped(version),
            Outcome::Mismatch => StoreReply::Mismatch,
            Outcome::Locked(holder) => StoreReply::Locked(holder),
            Outcome::Done => StoreReply::Done,
            Outcome::Fenced => {
                self.checks.tally.refused += 1;
                StoreReply::Fenced
            }
            Outcome::Block(_) => unreachable!("no block was read"),
        })
    }

    fn owner_of(&self, object: ObjectName) -> Option<InstanceId> {
        let (_, value) = self.cluster.objects.get(&object)?;
        peek::<Ownership>(value)?.owner
    }

    pub(super) fn notify(&mut self, object: ObjectName) {
        for gateway in 0..self.gateways.len() {
            // Notifications are lost now and then.
            if let Some(instance) = self.instance_of(gateway).filter(|_| !self.gateways[gateway].store_cut)
                && !self.rng.chance_permille(50)
            {
                let delay = self.rng.between(MS / 10, 2 * MS);
                self.after(delay, Event::Input(instance, Input::Notify(object)));
            }
        }
    }
}
