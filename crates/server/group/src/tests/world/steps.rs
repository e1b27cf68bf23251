//! What a script does.

use super::*;

impl World {
    pub(super) fn step(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Pause { gateway, ms } => {
                if self.runs(gateway) {
                    let until = now + ms * MS;
                    self.gateways[gateway].paused = Some(until);
                    if let Some(instance) = self.instance_of(gateway) {
                        self.reset_controllers_of(instance);
                    }
                    self.at(until, Event::Resume(gateway, until));
                }
            }
            Step::Kill { gateway, silent, ms } => {
                self.end_process(gateway, silent);
                self.after(ms * MS, Event::Start(gateway));
            }
            Step::Cut { one, other, ms } => {
                let pair = (one.min(other), one.max(other));
                if self.cut.insert(pair) {
                    self.after(ms * MS, Event::Heal(pair.0, pair.1));
                }
            }
            Step::Reset { one, other } => self.reset(one, other),
            Step::StoreCut { gateway, ms } => {
                self.gateways[gateway].store_cut = true;
                self.after(ms * MS, Event::StoreHeal(gateway));
            }
            Step::Drain { gateway, ms } => {
                let Some(instance) = self.instance_of(gateway) else { return };
                self.draining.entry(instance).or_insert(now);
                self.input(instance, Input::Drain(true));
                self.after(ms * MS, Event::Undrain(gateway));
            }
            Step::Apply { gateway, based } => self.all_apply(gateway, based),
            Step::Port { gateway, name } => self.ask_numbers(gateway, |id| Input::Port(id, name)),
            Step::Bind { gateway, host, nqn } => self.ask_numbers(gateway, |id| Input::Bind(id, host, nqn)),
            Step::Volumes { second } => self.set_volumes(second),
            Step::Expel { gateway, lost } => {
                if let (Some(by), Some(lost)) = (self.instance_of(gateway), self.instance_of(lost)) {
                    self.input(by, Input::Expel(lost));
                }
            }
        }
    }

    /// All gateways learn of other volumes, sooner or later.
    pub(super) fn set_volumes(&mut self, second: bool) {
        for (group, volumes) in &mut self.layout {
            volumes.truncate(1);
            if second {
                volumes.push(second_volume(group.0));
            }
        }
        for gateway in 0..self.gateways.len() {
            if let Some(instance) = self.instance_of(gateway) {
                let delay = self.rng.below(300) * MS;
                self.after(delay, Event::Input(instance, Input::Groups));
            }
        }
    }

    pub(super) fn ask_numbers(&mut self, gateway: usize, input: impl Fn(u64) -> Input) {
        self.number += 1;
        let id = self.number;
        if let Some(instance) = self.instance_of(gateway) {
            self.input(instance, input(id));
        }
    }

    /// All gateways apply a configuration at once.
    pub(super) fn all_apply(&mut self, first: usize, based: bool) {
        for gateway in 0..self.gateways.len() {
            let gateway = (first + gateway) % self.gateways.len();
            let Some(instance) = self.instance_of(gateway) else { continue };
            self.number += 1;
            let bytes: Arc<[u8]> = self.number.to_le_bytes().as_slice().into();
            let input = Input::Apply(self.number, based.then_some(0), bytes);
            self.input(instance, input);
        }
    }
}
