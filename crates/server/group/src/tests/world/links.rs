//! Links between gateways: in order, reset, stalled while two are cut off.

use super::*;

impl World {
    pub(super) fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.contains(&(one.min(other), one.max(other)))
    }

    pub(super) fn connect(&mut self, from: usize, by: InstanceId, to: InstanceId) {
        let delay = self.rng.between(MS / 10, 2 * MS);
        let Some(other) = self.gateway_of(to) else {
            // Somebody else is there by now, or nobody.
            let place = place_of(&self.gateways, &self.cluster, to);
            let reachable =
                place.is_none_or(|place| !self.gateways[place].silent && !self.is_cut(from, place));
            if reachable {
                self.link_event(from, by, delay, Input::Refused(to));
            }
            return;
        };
        let linked = self
            .links
            .values()
            .any(|link| link.up && link.ends.iter().all(|(_, instance)| *instance == by || *instance == to));
        if linked || !self.runs(other) || self.is_cut(from, other) {
            return;
        }
        self.number += 1;
        let link = LinkId(self.number);
        let ends = [(from, by), (other, to)];
        let (last, until) = ([self.now; 2], [u64::MAX; 2]);
        self.links.insert(link, Link { ends, up: true, last, stalled: Vec::new(), until });
        self.link_event(from, by, delay, Input::LinkUp(link, to));
        self.link_event(other, to, delay, Input::LinkUp(link, by));
        let up = [self.gateways[from].links, self.gateways[other].links];
        if let Some(link) = self.links.get_mut(&link) {
            link.last = up;
        }
    }

    /// Events of links reach a gateway in their order.
    pub(super) fn link_event(&mut self, gateway: usize, instance: InstanceId, delay: u64, input: Input) {
        let at = (self.now + delay).max(self.gateways[gateway].links + 1);
        self.gateways[gateway].links = at;
        self.at(at, Event::Input(instance, input));
    }

    pub(super) fn close_link(&mut self, link: LinkId, by: InstanceId) {
        let Some(known) = self.links.get_mut(&link).filter(|known| known.up) else { return };
        known.up = false;
        known.until = [self.now + MS; 2];
        let other = known.ends.iter().find(|(_, instance)| *instance != by).copied().expect("two ends");
        self.link_event(other.0, other.1, 2 * MS, Input::LinkDown(link));
    }

    pub(super) fn send_message(&mut self, link: LinkId, by: InstanceId, message: LinkMessage<u64>) {
        let delay = self.rng.between(MS / 20, MS);
        let now = self.now;
        let Some(known) = self.links.get_mut(&link).filter(|known| known.up) else { return };
        let to = usize::from(known.ends[0].1 == by);
        let (one, other) = (known.ends[0].0, known.ends[1].0);
        if self.cut.contains(&(one.min(other), one.max(other))) {
            return known.stalled.push((to, message));
        }
        let at = (now + delay).max(known.last[to] + 1);
        known.last[to] = at;
        self.at(at, Event::Message(link, to, message));
    }

    pub(super) fn arrive_message(&mut self, link: LinkId, to: usize, message: LinkMessage<u64>) {
        let Some(known) = self.links.get(&link) else { return };
        if self.now <= known.until[to] {
            let instance = known.ends[to].1;
            self.input(instance, Input::Message(link, message));
        }
    }

    pub(super) fn reset(&mut self, one: usize, other: usize) {
        let of_both = |link: &Link| {
            link.up && link.ends.iter().all(|(gateway, _)| *gateway == one || *gateway == other)
        };
        let hit: Vec<LinkId> =
            self.links.iter().filter(|(_, link)| of_both(link)).map(|(id, _)| *id).collect();
        for id in hit {
            let until = [self.now + self.rng.below(3 * MS), self.now + self.rng.below(3 * MS)];
            let Some(link) = self.links.get_mut(&id) else { continue };
            (link.up, link.until) = (false, until);
            let ends = link.ends;
            for (end, (gateway, instance)) in ends.into_iter().enumerate() {
                self.link_event(gateway, instance, until[end] - self.now + 1, Input::LinkDown(id));
            }
        }
    }

    pub(super) fn heal(&mut self, one: usize, other: usize) {
        self.cut.remove(&(one, other));
        if self.rng.chance_permille(400) {
            return self.reset(one, other);
        }
        let stalled: Vec<(LinkId, InstanceId, LinkMessage<u64>)> = self
            .links
            .iter_mut()
            .filter(|(_, link)| link.up)
            .filter(|(_, link)| link.ends.iter().all(|(gateway, _)| *gateway == one || *gateway == other))
            .flat_map(|(id, link)| {
                let ends = link.ends;
                std::mem::take(&mut link.stalled)
                    .into_iter()
                    .map(move |(to, message)| (*id, ends[1 - to].1, message))
            })
            .collect();
        for (link, by, message) in stalled {
            self.send_message(link, by, message);
        }
    }
}

/// The gateway whose instance this was, by the members object.
fn place_of(gateways: &[Gateway], cluster: &Cluster, instance: InstanceId) -> Option<usize> {
    let (_, members) = cluster.objects.get(&ObjectName::Members)?;
    let members = peek::<Members>(members)?;
    let name = members.find(instance)?.gateway.clone();
    (0..gateways.len()).find(|gateway| *name == *format!("gateway{gateway}"))
}
