-- Requests that cannot be stored, and stay in the process of the worker that has claimed them.
--
-- Include  shared/keys shared/records shared/workers

-- Who has what stays in a process, by its field in `kept`: "DEATHS WORKER LEASE PAGE", how many
-- workers died with it, the lease that it was claimed for ('' if no page stands for it), and what
-- is known of the page that it goes back to: its identity, or '' where that is the request itself.
-- Only "DEATHS" after the worker gave it up.
-- -> worker, lease, page (nil if nobody has it), whether the field is there, deaths
local function claimant(field)
  local kept = redis.call('HGET', KEPT, field)
  local worker, lease, page = string.match(kept or '', '^%d+ (%S+) (%S*) (.*)$')
  return worker, lease, page, kept, math.min(tonumber(string.match(kept or '', '^%d+') or 0), 999)
end

-- Claims a request that cannot be stored for the worker, in whose process it stays; `is_new`: its
-- fingerprint or identity was. A claim ends with its worker, or when its page has gone on to
-- somebody else, who asks for all of it again; else it is there until it is settled.
-- -> '1' it is the worker's, and new, '6' it is the worker's, and was another's, '0' a duplicate,
-- '3' another worker has it, and no page stands for it there or here: ask again. What a page stands
-- for never waits: two such might wait for each other. What no page stands for may be what its
-- workers died of, as a stored request may (a page's own lease counts that): '4' it is the
-- worker's, and a suspect, '5' it is to be given up.
local function claim(is_new, field, lease, page)
  local owner, its_lease, its_page, kept, deaths = claimant(field)
  local is_mine = owner == input.worker and its_lease == lease
  local has_moved = owner and page ~= '' and its_page == page and not is_mine
  if is_new or has_moved or (kept and not (owner and is_member(owner))) then
    local answer = is_new and '1' or '6'
    local was_mine = owner and input.former and input.former[owner]
    if is_new then
      deaths = 0
    elseif page == '' then
      if owner and not was_mine then deaths = deaths + 1 end
      if deaths >= input.max_deliveries then
        answer = '5'
      elseif deaths >= input.suspect_from then
        if not was_mine then -- else it may have begun it
          if input.suspects == 0 then return '3' end
          input.suspects = input.suspects - 1
        end
        answer = '4'
      end
    end
    redis.call('HSET', KEPT, field, deaths .. ' ' .. input.worker .. ' ' .. lease .. ' ' .. page)
    return answer
  end
  return owner and owner ~= input.worker and page == '' and its_page == '' and '3' or '0'
end

-- Deaths count from here: input.gone_on is {{field in `kept`, or '' of a page; its lease}...}, of
-- which something new came that only this worker has. It may be all of a crawl that comes of it,
-- before it is over. If a server loses this, or it is not sent any more, one death more is counted.
local function go_on()
  for _, item in ipairs(input.gone_on) do
    local field, lease, leases = item[1], item[2], leases_of(input.worker)
    if field ~= '' then
      local owner, its_lease, page = claimant(field)
      if owner == input.worker then
        redis.call('HSET', KEPT, field, '0 ' .. owner .. ' ' .. its_lease .. ' ' .. page)
      end
    else
      local slot, priority, entry = parse_record(redis.call('HGET', leases, lease) or '')
      if slot then
        redis.call('HSET', leases, lease, record_of(slot, priority, with_deliveries(entry, 0)))
      end
    end
  end
end

-- Ends claims: input.settled is {{field in `kept`, lease, whether it was dealt with}...}. What was
-- not may be claimed by other workers. What another living worker has is its own.
local function settle()
  for _, item in ipairs(input.settled) do
    local owner, lease, _, kept, deaths = claimant(item[1])
    local is_mine = owner == input.worker and lease == item[2]
    if kept and (is_mine or not (owner and is_member(owner))) then
      if item[3] then redis.call('HDEL', KEPT, item[1])
      else redis.call('HSET', KEPT, item[1], deaths) end
    end
  end
end
